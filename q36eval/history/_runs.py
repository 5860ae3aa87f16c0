"""The runs: begun, changed, finished and found again."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select, update

from q36eval.errors import UsageError
from q36eval.gate.policy import Policy
from q36eval.gate.report import Circumstances, GateReport
from q36eval.history import _tables as tables
from q36eval.history._connected import Connected
from q36eval.history._rows import json_values, run_of, run_row, timestamp
from q36eval.history.records import RunRecord, RunState
from q36eval.records import DeploymentIdentity, Verdict


class Runs(Connected):
    """The table of runs."""

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
        with self._reading() as connection, self._whole():
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
