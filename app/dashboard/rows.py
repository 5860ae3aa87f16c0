"""The branches as rows, read with what people decided of them; several pages begin with these."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from q36eval.app.dashboard.models.overview import BranchRow, Review, branch_row, standing_waivers
from q36eval.app.dashboard.reading import Reader
from q36eval.history import BranchKey


def branch_rows(reader: Reader, now: datetime) -> list[BranchRow]:
    """Every branch, without what only its newest report tells."""
    reviews = _reviews(reader)
    return [branch_row(of, reviews[of.family, of.branch], now) for of in reader.branches()]


def detailed(reader: Reader, rows: Iterable[BranchRow], now: datetime) -> list[BranchRow]:
    """The rows with what their newest reports tell; slower, so of the rows of one page only."""
    reviews = _reviews(reader)
    return [
        row
        if row.of.judged is None
        else branch_row(row.of, replace(reviews[row.key], report=reader.run(row.of.judged.id).report), now)
        for row in rows
    ]


def _reviews(reader: Reader) -> dict[BranchKey, Review]:
    waivers, drifts = standing_waivers(reader.waiver_records()), reader.kept_drifts()
    keys = [(of.family, of.branch) for of in reader.branches()]
    blessings = {key: next(iter(reader.blessings(*key)), None) for key in keys}
    return {key: Review(blessings[key], waivers.get(key, ()), drifts.get(key)) for key in keys}
