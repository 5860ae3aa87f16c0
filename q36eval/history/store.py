"""History: every run, measurement and item, written as it is made."""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from q36eval.errors import StorageError, UsageError
from q36eval.gate.policy import Policy
from q36eval.gate.report import Circumstances, GateReport, Waiver
from q36eval.history import _tables as tables
from q36eval.history._database import WRITE, open_engine, used
from q36eval.history._rows import (
    item_row,
    json_values,
    measurement_of,
    measurement_row,
    run_of,
    run_row,
    timestamp,
    upsert,
)
from q36eval.history.records import Blessing, RunRecord, RunState, SeriesPoint
from q36eval.records import (
    DeploymentIdentity,
    ItemOutcome,
    Measurement,
    ProbeFailure,
    ProbeName,
    Verdict,
)


class History:
    """The database of runs. Safe to share between threads and processes; every write is committed at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path_or_url: Path | str) -> "History":
        """Open (or make) an SQLite file and bring it to the newest schema.

        Raises:
            UsageError: not a database of ours, or one written by a newer version.
        """
        return cls(open_engine(path_or_url))

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    def check_writable(self) -> None:
        """Refuse now what could not be written later, after hours of measuring.

        Raises:
            UsageError: the database is read-only, or its disk is full.
        """
        try:
            with self._write() as connection:  # a lock alone is granted on a read-only file too
                connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
        except StorageError as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with used(self._engine.url.database), self._engine.execution_options(**WRITE).begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with used(self._engine.url.database), self._engine.connect() as connection:
            yield connection

    # ---- runs ----

    def start_run(
        self,
        *,
        family: str,
        branch: str,
        identity: DeploymentIdentity | None,
        reference_identity: DeploymentIdentity | None,
        policy: Policy | None = None,
        suites: Mapping[str, str] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        """A new run in state `running`; its id sorts by time."""
        now = datetime.now(UTC)
        run = RunRecord(
            id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            family=family,
            branch=branch,
            identity=identity,
            reference_identity=reference_identity,
            policy=None if policy is None else json_values(policy),
            suites=dict(suites or {}),
            provenance=dict(provenance or {}),
            state=RunState.RUNNING,
            started=now,
        )
        with self._write() as connection:
            connection.execute(insert(tables.runs).values(**run_row(run)))
        return run

    def finish_run(
        self, run_id: str, report: GateReport | None = None, *, state: RunState = RunState.FINISHED
    ) -> RunRecord:
        """Close a run with its report (None for a run that only measured); returns it as stored.

        What is finished stays: interrupting it then (a Ctrl-C that came too late) changes nothing.

        Raises:
            UsageError: no such run, or it is to be finished a second time.
        """
        values = {
            "state": state.value,
            "finished": timestamp(datetime.now(UTC)),
            "verdict": None if report is None else report.verdict.value,
            "report": None if report is None else json_values(report),
        }
        if not self._update_run(run_id, values, unless=RunState.FINISHED) and state is RunState.FINISHED:
            raise UsageError(f"run {run_id} is finished already and keeps its verdict; start a new run.")
        return self.get_run(run_id)

    def update_run(
        self,
        run_id: str,
        *,
        identity: DeploymentIdentity | None = None,
        reference_identity: DeploymentIdentity | None = None,
        suites: Mapping[str, str] | None = None,
        state: RunState | None = None,
        circumstances: Circumstances | None = None,
        timings: Mapping[str, float] | None = None,
    ) -> RunRecord:
        """Add what only became known after the start, or reopen a run to resume it; None leaves a field as it is."""
        values = {
            "identity": None if identity is None else json_values(identity),
            "reference_identity": None if reference_identity is None else json_values(reference_identity),
            "suites": None if suites is None else dict(suites),
            "state": None if state is None else state.value,
            "circumstances": None if circumstances is None else json_values(circumstances),
            "timings": None if timings is None else dict(timings),
        }
        self._update_run(run_id, {name: value for name, value in values.items() if value is not None})
        return self.get_run(run_id)

    def _update_run(self, run_id: str, values: dict[str, Any], *, unless: RunState | None = None) -> bool:
        """Whether the run was changed: one in the state `unless` is left alone."""
        columns = tables.runs.c
        statement = update(tables.runs).where(columns.id == run_id)
        if unless is not None:
            statement = statement.where(columns.state != unless.value)
        with self._write() as connection:
            if connection.execute(statement.values(**values)).rowcount == 1:
                return True
            if connection.execute(select(columns.id).where(columns.id == run_id)).first() is None:
                raise UsageError(f"history has no run {run_id!r}.")
        return False

    def get_run(self, reference: str) -> RunRecord:
        """A run by its id, by a prefix that only one run has, or the `latest` one.

        Raises:
            UsageError: no such run, or several; the sentence lists what there is.
        """
        columns = tables.runs.c
        query = select(tables.runs).order_by(columns.started.desc(), columns.id.desc())
        with self._reading() as connection:
            if reference == "latest":
                rows = connection.execute(query.limit(1)).all()
            else:
                rows = connection.execute(query.where(columns.id.startswith(reference, autoescape=True))).all()
                rows = [row for row in rows if row.id == reference] or list(rows)
            if len(rows) == 1 and reference:
                return run_of(rows[0])
            known = connection.execute(query.limit(5)).all()
        if not known:
            raise UsageError("history holds no run yet: run `q36eval gate --branch NAME` first.")
        among = ", ".join(row.id for row in (rows or known)[:5])
        what = f"{len(rows)} runs start with {reference!r}" if rows else f"history has no run {reference!r}"
        raise UsageError(f"{what}; {'they are' if rows else 'the newest are'} {among}.")

    def list_runs(
        self,
        *,
        family: str | None = None,
        branch: str | None = None,
        state: RunState | None = None,
        verdict: Verdict | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """Runs that match every given filter, newest first."""
        columns = tables.runs.c
        query = select(tables.runs).order_by(columns.started.desc(), columns.id.desc()).limit(limit)
        for column, wanted in (
            (columns.family, family),
            (columns.branch, branch),
            (columns.state, state),
            (columns.verdict, verdict),
        ):
            if wanted is not None:
                query = query.where(column == str(wanted))
        return [run_of(row) for row in self._read(query)]

    # ---- what a run found ----

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

    # ---- review ----

    def bless(self, run_id: str, owner: str, reason: str) -> Blessing:
        """Accept a branch as a finished run found it; the newest blessing of a branch counts.

        Raises:
            UsageError: the run is not finished or judged nothing, or owner or reason is empty.
        """
        run = self.get_run(run_id)
        if run.state is not RunState.FINISHED or run.report is None:
            raise UsageError(f"run {run.id} cannot be blessed: it is {run.state} and has no verdict to accept.")
        if not owner.strip() or not reason.strip():
            raise UsageError("a blessing needs an owner and a reason.")
        now = datetime.now(UTC)
        row = {"run_id": run.id, "owner": owner, "reason": reason, "at": timestamp(now)}
        with self._write() as connection:
            connection.execute(insert(tables.blessings).values(**row))
        return Blessing(run_id=run.id, family=run.family, branch=run.branch, owner=owner, reason=reason, at=now)

    def blessings(self, branch: str, family: str | None = None) -> list[Blessing]:
        """All blessings of a branch, newest first."""
        runs, columns = tables.runs.c, tables.blessings.c
        query = (
            select(columns.run_id, runs.family, runs.branch, columns.owner, columns.reason, columns.at)
            .join(tables.runs, runs.id == columns.run_id)
            .where(runs.branch == branch)
            .order_by(columns.id.desc())
        )
        if family is not None:
            query = query.where(runs.family == family)
        return [Blessing.model_validate(dict(row._mapping)) for row in self._read(query)]

    def blessed(self, branch: str, family: str | None = None) -> RunRecord | None:
        """The run with which a branch was last accepted, or None."""
        newest = self.blessings(branch, family)
        return self.get_run(newest[0].run_id) if newest else None

    def add_waiver(self, family: str, branch: str, waiver: Waiver) -> int:
        """Write a waiver for one branch; returns its number."""
        row = {"family": family, "branch": branch, **waiver.model_dump(mode="json")}
        with self._write() as connection:
            number = connection.execute(insert(tables.waivers).values(**row)).inserted_primary_key
        assert number is not None
        return int(number[0])

    def revoke_waiver(self, number: int) -> None:
        """Take a waiver back; it stays on record.

        Raises:
            UsageError: there is no such waiver in force.
        """
        columns = tables.waivers.c
        statement = update(tables.waivers).where(columns.id == number, columns.revoked.is_(None))
        with self._write() as connection:
            if connection.execute(statement.values(revoked=timestamp(datetime.now(UTC)))).rowcount != 1:
                raise UsageError(f"there is no waiver number {number} that could be revoked.")

    def waivers(self, family: str, branch: str) -> dict[int, Waiver]:
        """Waivers of a branch that were not revoked, by number. Whether one has expired is the gate's to say."""
        columns = tables.waivers.c
        scope = (columns.criterion, columns.canary, columns.slice)
        query = select(columns.id, columns.owner, columns.reason, *scope, columns.expires).where(
            columns.family == family, columns.branch == branch, columns.revoked.is_(None)
        )
        rows = [dict(row._mapping) for row in self._read(query.order_by(columns.id))]
        return {row.pop("id"): Waiver.model_validate(row) for row in rows}

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

    def _read(self, query: Any) -> Sequence[Row[Any]]:
        with self._reading() as connection:
            return connection.execute(query).all()
