"""History: every run, measurement and item, written as it is made."""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, and_, delete, func, select

from q36eval.history import _tables as tables
from q36eval.history._listing import Listing
from q36eval.history._review import Review
from q36eval.history._rows import item_row, measurement_of, measurement_row, upsert
from q36eval.history._traces import Traces
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName


class History(Review, Listing, Traces):
    """The database of runs. Safe to share between threads and processes; every write is committed at once."""

    def add_items(self, run_id: str, outcomes: Iterable[ItemOutcome]) -> None:
        """Write item outcomes. A list is one transaction; of anything lazy each item is committed as it comes.

        An item that is there already (a retry) is replaced.
        """
        if isinstance(outcomes, list | tuple):
            with self._write() as connection:
                for outcome in outcomes:
                    upsert(connection, tables.items, item_row(run_id, outcome))
            return
        for outcome in outcomes:
            with self._write() as connection:
                upsert(connection, tables.items, item_row(run_id, outcome))

    def add_measurement(self, run_id: str, measurement: Measurement) -> None:
        """Write one measurement; one of the same key is replaced."""
        with self._write() as connection:
            upsert(connection, tables.measurements, measurement_row(run_id, measurement))

    def add_failure(self, run_id: str, failure: ProbeFailure) -> None:
        """Write that a probe gave no figures."""
        with self._write() as connection:
            upsert(connection, tables.probe_failures, {"run_id": run_id, **failure.model_dump(mode="json")})

    def clear_failures(self, run_id: str) -> None:
        """Forget a run's probe failures: it is being resumed, and they will be found again if they persist."""
        with self._write() as connection:
            connection.execute(delete(tables.probe_failures).where(tables.probe_failures.c.run_id == run_id))

    def items(
        self,
        run_id: str,
        probe: ProbeName | None = None,
        group: str | None = None,
        *,
        flips_only: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ItemOutcome]:
        """Item outcomes of a run in the order they were first written; of those, `limit` from `offset` on."""
        columns = tables.items.c
        query = select(columns.record).where(_asked(run_id, probe, group, flips_only)).order_by(columns.id)
        return [ItemOutcome.model_validate_json(row.record) for row in self._read(query.limit(limit).offset(offset))]

    def count_items(
        self, run_id: str, probe: ProbeName | None = None, group: str | None = None, *, flips_only: bool = False
    ) -> int:
        """How many outcomes `items` would give without a limit."""
        query = select(func.count()).select_from(tables.items).where(_asked(run_id, probe, group, flips_only))
        return int(self._read(query)[0][0])

    def groups(self, run_id: str, probe: ProbeName) -> list[str]:
        """The groups of items (canaries, tasks) that a probe asked in a run, sorted."""
        columns = tables.items.c
        query = select(columns.item_group).where(columns.run_id == run_id, columns.probe == probe.value)
        return [row.item_group for row in self._read(query.distinct().order_by(columns.item_group))]

    def measurements(self, run_id: str) -> list[Measurement]:
        """All measurements of a run, with their clusters, in the order they were first written."""
        columns = tables.measurements.c
        query = select(columns.record, columns.clusters).where(columns.run_id == run_id).order_by(columns.id)
        return [measurement_of(row.record, row.clusters) for row in self._read(query)]

    def failures(self, run_id: str) -> list[ProbeFailure]:
        """The probes of a run that gave no figures."""
        columns = tables.probe_failures.c
        query = select(columns.probe, columns.kind, columns.reason).where(columns.run_id == run_id).order_by(columns.id)
        return [ProbeFailure.model_validate(dict(row._mapping)) for row in self._read(query)]


def _asked(run_id: str, probe: ProbeName | None, group: str | None, flips_only: bool) -> ColumnElement[bool]:
    columns = tables.items.c
    wanted = [columns.run_id == run_id]
    if probe is not None:
        wanted.append(columns.probe == probe.value)
    if group is not None:
        wanted.append(columns.item_group == group)
    if flips_only:
        wanted.append(columns.flip.is_not(None))
    return and_(*wanted)
