"""The branches as rows, read with what people decided of them; several pages begin with these."""

from datetime import datetime

from app.dashboard.overview_model import BranchRow, Review, branch_row, standing_waivers
from app.dashboard.reading import Reader
from q36eval.history import Blessing, BranchSummary


def branch_rows(reader: Reader, now: datetime) -> list[BranchRow]:
    """Every branch, without what only its newest report tells."""
    waivers = standing_waivers(reader.waiver_records())
    return [
        branch_row(of, Review(_blessing(reader, of), waivers.get((of.family, of.branch), ())), now)
        for of in reader.branches()
    ]


def detailed(reader: Reader, row: BranchRow, now: datetime) -> BranchRow:
    """The row with what its newest report tells; slower, so of the rows of one page only."""
    of = row.of
    if of.judged is None:
        return row
    blessing = _blessing(reader, of)
    waivers = standing_waivers(reader.waiver_records()).get(row.key, ())
    return branch_row(of, Review(blessing, waivers, reader.run(of.judged.id).report), now)


def _blessing(reader: Reader, of: BranchSummary) -> Blessing | None:
    return next(iter(reader.blessings(of.family, of.branch)), None)
