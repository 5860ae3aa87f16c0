"""What the paired comparison says, in states and sentences: of each metric, and of the branch. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.drift.paired import paired_difference
from q36eval.drift.records import BranchDrift, DeploymentChange, DriftPoint, DriftState, MetricDrift, PairedDifference
from q36eval.drift.series import identity_changes, unmeasured_since, why_apart
from q36eval.gate.blessed_run import BLESS, ESTIMATORS
from q36eval.gate.noise import of_reference_alone
from q36eval.history.records import SeriesPoint, SeriesRun
from q36eval.records import Direction, Measurement

Measured = Callable[[str], Sequence[Measurement]]
"""All measurements of a run, by its id."""


def branch_drift(
    family: str,
    branch: str,
    series: Sequence[SeriesPoint],
    measured: Measured,
    blessed_run_id: str | None = None,
    watched: Collection[str] | None = None,
    runs: Sequence[SeriesRun] = (),
    read_keys: Collection[str] | None = None,
) -> BranchDrift:
    """A branch's drift from `series`, as `History.metric_series` gives it; `watched` keys decide its state (None: all).

    `runs` are all finished runs of the branch: one without a point in `series` may have been to measure something.
    `read_keys` are the keys that `series` was read for (None: all): of other watched ones it says nothing.
    """
    metrics = drift(series, measured, blessed_run_id, watched, runs)
    deciding = [metric for metric in metrics if metric.watched]
    looked_for = set(watched or ()) if read_keys is None else set(watched or ()) & set(read_keys)
    never = sorted(looked_for - {point.key for point in series})
    state, statement = _of_branch(deciding, blessed_run_id)
    if never:
        verb = "was" if len(never) == 1 else "were"
        statement += f" {len(never)} more that the policy judges {verb} never measured."
    return BranchDrift(
        family=family,
        branch=branch,
        state=state,
        statement=statement,
        worse=any(metric.state is DriftState.DRIFTING and metric.worse for metric in deciding),
        runs=len({run.id for run in (*runs, *(point.run for point in series))}),
        blessed_run_id=blessed_run_id,
        watched=len(deciding),
        never_measured=tuple(never),
        changes=_all_changes(metrics),
        metrics=tuple(metrics),
    )


def drift(
    series: Sequence[SeriesPoint],
    measured: Measured,
    blessed_run_id: str | None = None,
    watched: Collection[str] | None = None,
    runs: Sequence[SeriesRun] = (),
) -> list[MetricDrift]:
    """Drift of every metric in `series` (as `History.metric_series` gives it), sorted by key.

    The noise floor is left out: it says nothing of the branch. `watched` keys (None: all) share the false alarm rate;
    the others are compared at the same level and decide nothing. `runs` are as in `branch_drift`.
    """
    by_key: dict[str, list[SeriesPoint]] = {}
    for point in sorted(series, key=lambda point: (point.run.started, point.run.id)):
        if not of_reference_alone(point.probe, point.metric):
            by_key.setdefault(point.key, []).append(point)
    known = {run.id: run for run in (*runs, *(point.run for point in series))}
    every = sorted(known.values(), key=lambda run: (run.started, run.id))
    count = max(1, len(by_key if watched is None else watched))
    blessed = _Blessed(blessed_run_id, measured, count)
    return [_metric(by_key[key], every, blessed, watched is None or key in watched) for key in sorted(by_key)]


@dataclass(frozen=True)
class _Blessed:
    """The run compared with; `metrics` are compared at once."""

    run_id: str | None
    measured: Measured
    metrics: int

    def difference(self, point: SeriesPoint) -> PairedDifference | str:
        """A run's difference to the blessed run, or why there is none."""
        assert self.run_id is not None
        run, blessed = self.measured(point.run.id), self.measured(self.run_id)
        return paired_difference(point.key, run, blessed, metrics=self.metrics)


def _metric(points: Sequence[SeriesPoint], runs: Sequence[SeriesRun], blessed: _Blessed, watched: bool) -> MetricDrift:
    newest = points[-1]
    base = next((point for point in points if point.run.id == blessed.run_id), None)
    drawn = _points(points, base or newest)
    found = _judged(points, drawn, runs, blessed, base)
    return MetricDrift(
        key=newest.key,
        unit=newest.unit,
        direction=newest.direction,
        blessed_run_id=None if base is None else base.run.id,
        points=drawn,
        watched=watched and found["state"] is not DriftState.CHART_ONLY,
        **found,
    )


def _points(points: Sequence[SeriesPoint], base: SeriesPoint) -> tuple[DriftPoint, ...]:
    drawn, before = [], None
    for point in points:
        apart = why_apart(base, point)
        drawn.append(
            DriftPoint(
                run_id=point.run.id,
                started=point.run.started,
                value=point.value,
                effect=point.effect,
                effect_interval=point.effect_interval,
                verdict=point.run.verdict,
                apart=tuple(apart),
                identity_changes=() if apart or before is None else identity_changes(before.run, point.run),
            )
        )
        before = before if apart else point
    return tuple(drawn)


def _judged(
    points: Sequence[SeriesPoint],
    drawn: Sequence[DriftPoint],
    runs: Sequence[SeriesRun],
    blessed: _Blessed,
    base: SeriesPoint | None,
) -> dict[str, Any]:
    """State and statement, and of a comparison its figures."""
    newest = points[-1]
    if newest.estimator not in ESTIMATORS:
        return _state(DriftState.CHART_ONLY, f"Not compared: a {newest.estimator} cannot be paired; set a limit.")
    if blessed.run_id is None:
        return _state(DriftState.NOT_BLESSED, f"No run is blessed to compare with; accept one with {BLESS}.")
    unmeasured = unmeasured_since(points, runs)
    if unmeasured is not None:
        return _state(DriftState.INCOMPARABLE, f"The newest run that was to measure it, {unmeasured}, did not.")
    if base is None:
        return _state(DriftState.INCOMPARABLE, f"The blessed run {blessed.run_id} did not measure it.")
    if base is newest:
        return _state(DriftState.STABLE, "The newest run is the blessed one.")
    if drawn[-1].apart:
        why = "; ".join(drawn[-1].apart)
        return _state(DriftState.INCOMPARABLE, f"Does not compare with the blessed run {blessed.run_id}: {why}.")
    difference = blessed.difference(newest)
    if isinstance(difference, str):
        return _state(DriftState.INCOMPARABLE, difference)
    lower_is_better = newest.direction is Direction.LOWER_IS_BETTER
    if not math.isfinite(difference.interval.lower if lower_is_better else difference.interval.upper):
        words = f"{difference.clusters} clusters give no bound on how much worse it is."
        return _state(DriftState.INCOMPARABLE, words) | {"difference": difference}
    if not difference.moved:
        words = f"Within noise of the blessed run: {_figures(difference)}."
        return _state(DriftState.STABLE, words) | {"difference": difference}
    since = _since(points, drawn, blessed, difference)
    worse = difference.up == lower_is_better
    changed = since.identity_changes
    with_it = f"changed there: {', '.join(changed)}" if changed else "nothing in the deployment changed there"
    way = "worse" if worse else "better"
    words = f"Drifting for the {way} since run {since.run_id}: {_figures(difference)}; {with_it}."
    return _state(DriftState.DRIFTING, words) | {
        "difference": difference,
        "since_run_id": since.run_id,
        "worse": worse,
        "changed_there": changed,
    }


def _state(state: DriftState, statement: str) -> dict[str, Any]:
    return {"state": state, "statement": statement}


def _since(
    points: Sequence[SeriesPoint], drawn: Sequence[DriftPoint], blessed: _Blessed, newest: PairedDifference
) -> DriftPoint:
    """The first of the newest runs that all differ from the blessed one in the same direction, beyond noise."""
    since = drawn[-1]
    for point, shown in zip(points[-2::-1], drawn[-2::-1], strict=True):
        if shown.run_id == blessed.run_id:
            break
        if shown.apart:
            continue
        earlier = blessed.difference(point)
        if isinstance(earlier, str) or not earlier.moved or earlier.up is not newest.up:
            break
        since = shown
    return since


def _figures(difference: PairedDifference) -> str:
    """The difference with its interval."""
    low, high = difference.interval.lower, difference.interval.upper
    if difference.no_change == 1.0:
        return f"newest / blessed run {difference.effect:.4g} [{low:.4g}, {high:.4g}]"
    return f"newest minus blessed run {difference.effect:+.3g} [{low:+.3g}, {high:+.3g}]"


def _all_changes(metrics: Sequence[MetricDrift]) -> tuple[DeploymentChange, ...]:
    """Newest first. Of one run whose metrics are compared with different ones, what the last metric saw."""
    changed = {point.run_id: point for metric in metrics for point in metric.points if point.identity_changes}
    return tuple(
        DeploymentChange(run_id=point.run_id, started=point.started, changed=point.identity_changes)
        for point in sorted(changed.values(), key=lambda point: (point.started, point.run_id), reverse=True)
    )


def _of_branch(metrics: Sequence[MetricDrift], blessed_run_id: str | None) -> tuple[DriftState, str]:
    """A drift outweighs everything; then what cannot be compared, for unknown is not fine."""
    if blessed_run_id is None:
        return DriftState.NOT_BLESSED, f"No run is blessed to compare with; accept one with {BLESS}."
    if not metrics:
        return DriftState.INCOMPARABLE, "No watched metric was measured yet."
    of = {state: [metric for metric in metrics if metric.state is state] for state in DriftState}
    worse = [metric for metric in of[DriftState.DRIFTING] if metric.worse]
    better = [metric for metric in of[DriftState.DRIFTING] if not metric.worse]
    if worse or better:
        moved = [f"{len(some)} for the {way}" for some, way in ((worse, "worse"), (better, "better")) if some]
        lead = _since_most(worse or better)
        return DriftState.DRIFTING, f"{' and '.join(moved)} of {len(metrics)} watched metrics drift; {lead}"
    if of[DriftState.INCOMPARABLE]:
        count = len(of[DriftState.INCOMPARABLE])
        return DriftState.INCOMPARABLE, f"{count} of {len(metrics)} watched metrics cannot be compared."
    return DriftState.STABLE, f"All {len(metrics)} watched metrics are within noise of the blessed run."


def _since_most(metrics: Sequence[MetricDrift]) -> str:
    """Since when most of them drift, and what changed there."""
    run, count = Counter(metric.since_run_id for metric in metrics).most_common(1)[0]
    there = next(metric for metric in metrics if metric.since_run_id == run)
    return f"{count} since run {run}, where {there.what_changed} changed."
