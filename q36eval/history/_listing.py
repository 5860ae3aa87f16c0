"""Many runs at once: lists, branches and series over time, without what only one run's own page needs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, func, select, true

from q36eval.history import _tables as tables
from q36eval.history._connected import Connected
from q36eval.history._rows import measurement_of, run_of, timestamp
from q36eval.history.records import BranchSummary, RunFilter, RunRecord, RunState, RunSummary, SeriesPoint, SeriesRun
from q36eval.records import DeploymentIdentity, Verdict


class Listing(Connected):
    """Reads that go over many runs."""

    def summaries(
        self, wanted: RunFilter | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[RunSummary]:
        """Runs as lines, newest first; of those, `limit` from `offset` on."""
        columns = tables.runs.c
        query = select(tables.runs).where(_matching(wanted)).order_by(columns.started.desc(), columns.id.desc())
        return [_summary(run_of(row)) for row in self._read(query.limit(limit).offset(offset))]

    def count_runs(self, wanted: RunFilter | None = None) -> int:
        """How many runs `summaries` would give without a limit."""
        query = select(func.count()).select_from(tables.runs).where(_matching(wanted))
        return int(self._read(query)[0][0])

    def branches(self) -> list[BranchSummary]:
        """Every branch that has a run, the one with the newest run first."""
        found: dict[tuple[str, str], list[RunSummary]] = {}
        for summary in self.summaries():
            found.setdefault((summary.family, summary.branch), []).append(summary)
        return [
            BranchSummary(
                family=family,
                branch=branch,
                runs=len(runs),
                newest=runs[0],
                judged=next((run for run in runs if run.verdict is not None), None),
            )
            for (family, branch), runs in found.items()
        ]

    def metric_keys(self, branch: str, family: str | None = None) -> list[str]:
        """Keys (`probe.metric[slice]`) of all that finished runs of a branch measured, sorted."""
        columns = tables.measurements.c
        query = (
            select(columns.probe, columns.metric, columns.slice)
            .join(tables.runs, tables.runs.c.id == columns.run_id)
            .where(_finished(branch, family))
            .distinct()
        )
        return sorted(f"{row.probe}.{row.metric}[{row.slice}]" for row in self._read(query))

    def metric_series(
        self, branch: str, family: str | None = None, keys: Sequence[str] | None = None
    ) -> list[SeriesPoint]:
        """Measurements of every finished run of a branch, oldest run first, without clusters; of those `keys` alone."""
        runs, columns = tables.runs.c, tables.measurements.c
        query = (
            select(
                runs.id, runs.started, runs.verdict, runs.policy, runs.suites, runs.identity, runs.reference_identity
            )
            .add_columns(columns.record)
            .join(tables.measurements, columns.run_id == runs.id)
            .where(_finished(branch, family))
            .order_by(runs.started, runs.id, columns.id)
        )
        known: dict[str, SeriesRun] = {}
        points = (_point(row, known) for row in self._read(query))
        return [point for point in points if keys is None or point.key in keys]


def _matching(wanted: RunFilter | None) -> ColumnElement[bool]:
    columns, found = tables.runs.c, wanted or RunFilter()
    equal = (
        (columns.family, found.family),
        (columns.branch, found.branch),
        (columns.state, found.state),
        (columns.verdict, found.verdict),
    )
    conditions: list[ColumnElement[bool]] = [column == str(value) for column, value in equal if value is not None]
    if found.since is not None:
        conditions.append(columns.started >= timestamp(found.since))
    if found.until is not None:
        conditions.append(columns.started <= timestamp(found.until))
    return and_(true(), *conditions)


def _finished(branch: str, family: str | None) -> ColumnElement[bool]:
    return _matching(RunFilter(branch=branch, family=family, state=RunState.FINISHED))


def _summary(run: RunRecord) -> RunSummary:
    report, policy = run.report, run.policy or {}
    return RunSummary(
        id=run.id,
        family=run.family,
        branch=run.branch,
        state=run.state,
        started=run.started,
        finished=run.finished,
        verdict=run.verdict,
        policy=policy.get("name"),
        lanes={} if report is None else {lane.lane: lane.verdict for lane in report.lanes},
        waived=report is not None and bool(report.waived),
        awaiting_sign_off=report is not None and report.awaiting_sign_off,
        exit_code=None if report is None else report.exit_code,
        checkpoint_sha256=None if run.identity is None else run.identity.checkpoint_sha256,
        engine_version=None if run.identity is None else run.identity.engine_version,
    )


def _series_run(row: Row[Any]) -> SeriesRun:
    return SeriesRun(
        id=row.id,
        started=datetime.fromisoformat(row.started),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        policy=(row.policy or {}).get("name"),
        suites=row.suites,
        identity=_identity(row.identity),
        reference_identity=_identity(row.reference_identity),
    )


def _identity(kept: Any) -> DeploymentIdentity | None:
    return None if kept is None else DeploymentIdentity.model_validate(kept)


def _point(row: Row[Any], known: dict[str, SeriesRun]) -> SeriesPoint:
    if row.id not in known:
        known[row.id] = _series_run(row)
    measurement = measurement_of(row.record, None)
    return SeriesPoint(
        run=known[row.id],
        probe=measurement.probe,
        metric=measurement.metric,
        key=measurement.key,
        unit=measurement.unit,
        direction=measurement.direction,
        estimator=measurement.estimator,
        value=measurement.value,
        effect=measurement.effect,
        effect_interval=measurement.effect_interval,
        scored=measurement.counts.scored,
        errored=measurement.counts.errored,
    )
