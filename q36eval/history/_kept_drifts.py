"""What was found of the branches' drift, kept beside their runs: to find it takes a second, and a page shows many."""

import hashlib
from typing import Any

from sqlalchemy import and_, select, true

from q36eval.history import _tables as tables
from q36eval.history._connected import Connected, upsert
from q36eval.history.records import BranchKey, KeptDrift, RunState


class KeptDrifts(Connected):
    """The table of it. Nothing here is evidence: what is missing or of another `stand` is found anew."""

    def fingerprints(self, family: str | None = None, branch: str | None = None) -> dict[BranchKey, str]:
        """By family and branch: SHA-256 of which finished runs there are, their verdicts and reports, and the blessing.

        Whatever is read over a branch's finished runs stays the same while this does.
        """
        runs, texts, blessings = tables.runs.c, tables.texts.c, tables.blessings.c
        wanted = _of(runs, family, branch)
        of_runs = (
            select(runs.family, runs.branch, runs.id, runs.verdict, texts.sha256)
            .select_from(tables.runs.outerjoin(tables.texts, texts.id == runs.report))
            .where(wanted, runs.state == RunState.FINISHED.value)
        )
        of_blessings = (
            select(runs.family, runs.branch, blessings.run_id)
            .join(tables.runs, runs.id == blessings.run_id)
            .where(wanted)
            .order_by(blessings.at, blessings.id)
        )
        with self._reading() as connection:
            blessed = {(row.family, row.branch): row.run_id for row in connection.execute(of_blessings)}
            rows = connection.execute(of_runs).all()
        found = {(row.family, row.branch): hashlib.sha256() for row in rows}
        for row in sorted(rows, key=lambda row: row.id):
            report = b"" if row.sha256 is None else bytes(row.sha256)
            # written so that no two states read alike, whatever an imported run is called
            found[row.family, row.branch].update(f"{(row.id, row.verdict, report)!r}\n".encode())
        for key, hashed in found.items():
            hashed.update(f"blessed {blessed.get(key)!r}".encode())
        return {key: hashed.hexdigest() for key, hashed in found.items()}

    def keep_drift(self, family: str, branch: str, kept: KeptDrift) -> None:
        """Keep what was found of a branch; what was kept before is replaced."""
        with self._write() as connection:
            upsert(connection, tables.kept_drifts, {"family": family, "branch": branch, **kept.model_dump()})

    def kept_drifts(self, family: str | None = None, branch: str | None = None) -> dict[BranchKey, KeptDrift]:
        """What was kept, by family and branch; it holds only where its `stand` is the one of now."""
        columns = tables.kept_drifts.c
        rows = self._read(select(tables.kept_drifts).where(_of(columns, family, branch)))
        return {(row.family, row.branch): KeptDrift(stand=row.stand, found=row.found) for row in rows}


def _of(columns: Any, family: str | None, branch: str | None) -> Any:
    given = ((columns.family, family), (columns.branch, branch))
    return and_(true(), *(column == value for column, value in given if value is not None))
