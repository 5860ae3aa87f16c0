"""History: every run, measurement and item, written as it is made."""

from collections.abc import Iterable

from sqlalchemy import delete, select

from q36eval.history import _tables as tables
from q36eval.history._review import Review
from q36eval.history._rows import item_row, measurement_of, measurement_row, upsert
from q36eval.history.records import RunState, SeriesPoint
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName


class History(Review):
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
        self, run_id: str, probe: ProbeName | None = None, group: str | None = None, *, flips_only: bool = False
    ) -> list[ItemOutcome]:
        """Item outcomes of a run in the order they were first written."""
        columns = tables.items.c
        query = select(columns.record).where(columns.run_id == run_id).order_by(columns.id)
        if probe is not None:
            query = query.where(columns.probe == probe.value)
        if group is not None:
            query = query.where(columns.item_group == group)
        if flips_only:
            query = query.where(columns.flip.is_not(None))
        return [ItemOutcome.model_validate_json(row.record) for row in self._read(query)]

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

    def metric_series(self, branch: str, family: str | None = None) -> list[SeriesPoint]:
        """Every measurement of every finished run of a branch, oldest run first, without clusters."""
        runs, columns = tables.runs.c, tables.measurements.c
        query = (
            select(runs.id, runs.started, runs.verdict, runs.suites, runs.identity, runs.reference_identity)
            .add_columns(columns.probe, columns.record)
            .join(tables.measurements, columns.run_id == runs.id)
            .where(runs.branch == branch, runs.state == RunState.FINISHED.value)
            .order_by(runs.started, runs.id, columns.id)
        )
        if family is not None:
            query = query.where(runs.family == family)
        return [
            SeriesPoint(
                run_id=row.id,
                started=row.started,
                verdict=row.verdict,
                suite_sha256=row.suites.get(row.probe),
                identity=row.identity,
                reference_identity=row.reference_identity,
                measurement=measurement_of(row.record, None),
            )
            for row in self._read(query)
        ]
