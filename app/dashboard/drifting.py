"""Drift of a branch for the pages."""

from collections.abc import Sequence

from q36eval.drift import BranchDrift, DriftPoint, DriftState, MetricDrift
from q36eval.history import DriftState as Old
from q36eval.history import MetricDrift as OldMetric
from q36eval.history import SeriesPoint, drift

STATES = {
    Old.MOVED: DriftState.DRIFTING,
    Old.WITHIN: DriftState.STABLE,
    Old.TOO_FEW_RUNS: DriftState.TOO_FEW_RUNS,
    Old.INCOMPARABLE: DriftState.INCOMPARABLE,
}


def branch_drift(family: str, branch: str, series: Sequence[SeriesPoint], blessed: str | None) -> BranchDrift:
    metrics = tuple(_metric(metric) for metric in drift(series, blessed))
    drifting = [m for m in metrics if m.state is DriftState.DRIFTING]
    return BranchDrift(
        family=family,
        branch=branch,
        state=DriftState.DRIFTING if drifting else DriftState.STABLE,
        statement=f"{len(drifting)} metrics moved",
        worse=any(m.worse for m in drifting),
        runs=len({point.run.id for point in series}),
        baseline_run_id=metrics[0].baseline_run_id if metrics else None,
        blessed_run_id=blessed,
        watched=len(metrics),
        in_control_run_length=500,
        metrics=metrics,
    )


def _metric(old: OldMetric) -> MetricDrift:
    worse = old.state is Old.MOVED and "worse" in old.statement
    points = tuple(
        DriftPoint(
            run_id=p.run_id,
            started=p.started,
            value=p.value,
            effect=p.effect,
            effect_interval=p.effect_interval,
            line=int(not p.differs_in),
            breaks=tuple(p.differs_in),
        )
        for p in old.points
    )
    return MetricDrift(
        key=old.key,
        unit=old.unit,
        direction=old.direction,
        state=STATES[old.state],
        statement=old.statement,
        baseline_run_id=old.baseline_run_id,
        points=points,
        in_control_run_length=500,
        worse=worse,
    )
