"""The runs: begun, changed, finished and found; their progress and events."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from q36eval.errors import UsageError
from q36eval.gate.policy import Policy
from q36eval.gate.report import Circumstances, GateReport
from q36eval.history import _tables as tables
from q36eval.history._database import Connected, upsert
from q36eval.history._tables import timestamp
from q36eval.history._texts import json_text, json_values, kept, text_value, texts_of, unreadable
from q36eval.history.records import WATCHED, EventKind, RunEvent, RunProgress, RunRecord, RunState
from q36eval.records import DeploymentIdentity

MOST_NAMED = 20
"""The maximum of runs listed for an ambiguous id prefix."""


class Runs(Connected):
    """The table of runs, and those that follow a run while it works."""

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
            add_run(connection, run)
        return run

    def finish_run(
        self, run_id: str, report: GateReport | None = None, *, state: RunState = RunState.FINISHED
    ) -> RunRecord:
        """Close a run with its report (None for a run that only measured); returns it as stored.

        A finished run stays finished: interrupting it later (a late Ctrl-C) changes nothing.

        Raises:
            UsageError: no such run, or it is already finished.
        """
        values = {"state": state.value, "finished": timestamp(datetime.now(UTC)), **of_report(report)}
        with self._write() as connection:
            number, before = _locked(connection, run_id)
            if before != RunState.FINISHED.value:
                set_report(connection, number, report, values)
            elif state is RunState.FINISHED:
                raise UsageError(
                    "run-finished", f"run {run_id} is finished already and keeps its verdict; start a new run."
                )
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
        provenance: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        """Add facts known only after the start, or reopen a run to resume it; None leaves a field unchanged."""
        given = {
            "identity": identity,
            "reference_identity": reference_identity,
            "suites": None if suites is None else dict(suites),
            "circumstances": circumstances,
            "timings": None if timings is None else dict(timings),
            "provenance": None if provenance is None else dict(provenance),
        }
        values: dict[str, Any] = {} if state is None else {"state": state.value}
        values |= {} if identity is None else of_identity(identity)
        with self._write() as connection:
            number, _ = _locked(connection, run_id)
            values |= kept(connection, run_texts({name: value for name, value in given.items() if value is not None}))
            if values:
                connection.execute(update(tables.runs).where(tables.runs.c.number == number).values(**values))
        return self.get_run(run_id)

    def delete_run(self, run_id: str) -> None:
        """Delete a run with all that was kept of it; texts that only it used stay until `remove_unused_texts`.

        Raises:
            UsageError: no such run.
        """
        with self._write() as connection:
            number, _ = _locked(connection, run_id)
            connection.execute(delete(tables.runs).where(tables.runs.c.number == number))

    def get_run(self, reference: str) -> RunRecord:
        """A run by its id, by a unique prefix, or the `latest` gate.

        Raises:
            UsageError: no such run, or several; the message lists candidates.
        """
        columns = tables.runs.c
        query = select(tables.runs).order_by(columns.started.desc(), columns.id.desc())
        with self._reading() as connection, self._whole():
            if reference == "latest":
                is_gate = columns.policy_name.is_not(None) & ~columns.branch.startswith(WATCHED)
                rows = connection.execute(query.where(is_gate).limit(1)).all()
            else:
                rows = connection.execute(query.where(columns.id == reference)).all()
                rows = rows or connection.execute(query.where(columns.id.startswith(reference, autoescape=True))).all()
            if len(rows) == 1 and reference:
                return runs_of(connection, rows)[0]
            known = connection.execute(query.limit(5)).all()
        if not known or reference == "latest":
            raise UsageError("history-empty", "history holds no gate yet: run `q36eval gate --branch NAME` first.")
        among = ", ".join(row.id for row in rows[:MOST_NAMED] or known)
        among += f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        what = f"{len(rows)} runs start with {reference!r}" if rows else f"history has no run {reference!r}"
        raise UsageError(
            "run-ambiguous" if rows else "run-unknown", f"{what}; {'they are' if rows else 'the newest are'} {among}."
        )

    def holds(self, run_id: str) -> bool:
        """Whether there is a run of that very id."""
        return bool(self._read(select(tables.runs.c.number).where(tables.runs.c.id == run_id)))

    def set_progress(self, progress: RunProgress) -> None:
        """Store a run's progress, replacing the earlier one."""
        row = {**progress.model_dump(mode="json"), "at": timestamp(progress.at)}
        with self._write() as connection:
            upsert(connection, tables.run_progress, row)

    def progress(self, run_id: str) -> RunProgress | None:
        """A run's last progress; None without one."""
        columns = tables.run_progress.c
        rows = self._read(select(tables.run_progress).where(columns.run_id == run_id))
        return RunProgress.model_validate(dict(rows[0]._mapping)) if rows else None

    def add_event(self, run_id: str, kind: EventKind | str, message: str, at: datetime | None = None) -> None:
        """Record an event of a run, now or `at` a known moment.

        Raises:
            ValueError: the kind does not exist.
        """
        row = {
            "run_id": run_id,
            "at": timestamp(at or datetime.now(UTC)),
            "kind": EventKind(kind).value,
            "message": message,
        }
        with self._write() as connection:
            connection.execute(insert(tables.engine_events).values(**row))

    def events(self, run_id: str) -> list[RunEvent]:
        """What happened to a run, in that order."""
        columns = tables.engine_events.c
        query = select(columns.run_id, columns.at, columns.kind, columns.message).where(columns.run_id == run_id)
        return [RunEvent.model_validate(dict(row._mapping)) for row in self._read(query.order_by(columns.id))]


def add_run(connection: Connection, run: RunRecord) -> int:
    """Write a run as it is; returns its number."""
    row = {
        "id": run.id,
        "family": run.family,
        "branch": run.branch,
        "state": run.state.value,
        "started": timestamp(run.started),
        "finished": None if run.finished is None else timestamp(run.finished),
        "policy_name": None if run.policy is None else run.policy.get("name"),
        "imported": None if run.imported is None else timestamp(run.imported),
        **of_report(run.report),
        **of_identity(run.identity),
        **kept(connection, run_texts(dict(run))),
    }
    connection.execute(insert(tables.runs).values(**row))
    return number_of(connection, run.id)


def number_of(connection: Connection, run_id: str) -> int:
    """The number by which rows refer to a run.

    Raises:
        UsageError: no such run.
    """
    number = connection.execute(select(tables.runs.c.number).where(tables.runs.c.id == run_id)).scalar()
    if number is None:
        raise UsageError("run-unknown", f"history has no run {run_id!r}.")
    return int(number)


def _locked(connection: Connection, run_id: str) -> tuple[int, str]:
    """A run's number and state, locked until this transaction ends."""
    columns = tables.runs.c
    row = connection.execute(
        select(columns.number, columns.state).where(columns.id == run_id).with_for_update()
    ).first()
    if row is None:
        raise UsageError("run-unknown", f"history has no run {run_id!r}.")
    return row.number, row.state


def set_report(connection: Connection, number: int, report: GateReport | None, values: Mapping[str, Any]) -> None:
    """Give a run its report, and with it the other `values`."""
    texts = {"report": None if report is None else report.model_dump_json()}
    row = {**values, **kept(connection, texts)}
    connection.execute(update(tables.runs).where(tables.runs.c.number == number).values(**row))


def run_texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The fields of a run that are stored as texts, by column."""
    return {
        name: None if values[name] is None else json_text(values[name]) for name in tables.RUN_TEXTS if name in values
    }


def of_report(report: GateReport | None) -> dict[str, Any]:
    """A report's columns in a list."""
    return {
        "verdict": None if report is None else report.verdict.value,
        "lanes": None if report is None else {lane.lane.value: lane.verdict.value for lane in report.lanes},
        "waived": report is not None and bool(report.waived),
        "awaiting_sign_off": report is not None and report.awaiting_sign_off,
        "exit_code": None if report is None else report.exit_code,
    }


def of_identity(identity: DeploymentIdentity | None) -> dict[str, Any]:
    """The columns of the branch's identity in a list."""
    return {
        "checkpoint_sha256": None if identity is None else identity.checkpoint_sha256,
        "engine_version": None if identity is None else identity.engine_version,
    }


def runs_of(connection: Connection, rows: Sequence[Any], without: Collection[str] = ()) -> list[RunRecord]:
    """Rows as runs, `without` some of their texts.

    Raises:
        UsageError: a row has content unknown to this version: a newer one wrote it, or somebody changed it.
    """
    parts = [name for name in tables.RUN_TEXTS if name not in without]
    texts = texts_of(connection, (getattr(row, name) for row in rows for name in parts))
    runs = []
    for row in rows:
        values = {name: getattr(row, name) for name in RunRecord.model_fields if name not in without}
        values |= {name: text_value(texts, values[name], f"run {row.id}") for name in parts}
        try:
            runs.append(RunRecord.model_validate(values))
        except ValidationError as error:
            raise unreadable(f"run {row.id}", error) from error
    return runs
