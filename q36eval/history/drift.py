"""Drift: has a metric of a branch moved since the run it was blessed with? Pure."""

import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from q36eval.gate.noise import of_reference_alone
from q36eval.history.records import SeriesPoint
from q36eval.records import Direction, Interval, Record


class DriftState(StrEnum):
    """What can be said of one metric."""

    MOVED = "moved"
    WITHIN = "within"
    TOO_FEW_RUNS = "too_few_runs"
    INCOMPARABLE = "incomparable"


class DriftPoint(Record):
    """One run's figure: value, and the effect against the reference with its own interval.

    `differs_in` names what keeps it from being compared with the newest run; empty when it can be.
    """

    run_id: str
    started: datetime
    value: float
    effect: float
    effect_interval: Interval
    differs_in: tuple[str, ...] = ()


class MetricDrift(Record):
    """One metric over the runs of a branch, oldest first, and a plain statement about the newest.

    `baseline_run_id` is the blessed run, else the oldest comparable one. `moved` means that each of the two effects
    lies outside the other's interval; the runs share their items, so this errs on the side of staying quiet.
    """

    key: str
    unit: str
    direction: Direction
    state: DriftState
    statement: str
    baseline_run_id: str | None
    points: tuple[DriftPoint, ...]


def drift(series: Sequence[SeriesPoint], blessed_run_id: str | None = None) -> list[MetricDrift]:
    """Drift of every metric in `series` (as `History.metric_series` gives it), sorted by key.

    The noise floor is left out: it says nothing of the branch.
    """
    by_key: dict[str, list[SeriesPoint]] = {}
    for point in sorted(series, key=lambda point: (point.run.started, point.run.id)):
        if not of_reference_alone(point.probe, point.metric):
            by_key.setdefault(point.key, []).append(point)
    return [_metric_drift(by_key[key], blessed_run_id) for key in sorted(by_key)]


def _metric_drift(series: list[SeriesPoint], blessed_run_id: str | None) -> MetricDrift:
    newest = series[-1]
    points = tuple(_drift_point(point, newest) for point in series)
    baseline = next((point for point in points if point.run_id == blessed_run_id), None)
    name = "the blessed run"
    if blessed_run_id is None:
        baseline = next((point for point in points if not point.differs_in), None)
        name = "the oldest comparable run (none is blessed)"
    state, statement = _state(points, baseline, name, newest.direction)
    return MetricDrift(
        key=newest.key,
        unit=newest.unit,
        direction=newest.direction,
        state=state,
        statement=statement,
        baseline_run_id=None if baseline is None else baseline.run_id,
        points=points,
    )


def _drift_point(point: SeriesPoint, newest: SeriesPoint) -> DriftPoint:
    return DriftPoint(
        run_id=point.run.id,
        started=point.run.started,
        value=point.value,
        effect=point.effect,
        effect_interval=point.effect_interval,
        differs_in=_differences(point, newest),
    )


def _differences(point: SeriesPoint, newest: SeriesPoint) -> tuple[str, ...]:
    """What must agree and does not. The branch's weights may change: that is what drift is about."""
    found = [] if point.suite_sha256 == newest.suite_sha256 else ["suite hash"]
    if point.run.identity is None or newest.run.identity is None:
        found.append("unknown deployment identity")
    else:
        fields = point.run.identity.differing_fields(newest.run.identity)
        found += [field.replace("_", " ") for field in fields if field != "checkpoint_sha256"]
    if point.run.reference_identity != newest.run.reference_identity:
        found.append("reference")
    if point.estimator != newest.estimator or point.unit != newest.unit:
        found.append("definition of the metric")
    return tuple(found)


def _state(
    points: tuple[DriftPoint, ...], baseline: DriftPoint | None, name: str, direction: Direction
) -> tuple[DriftState, str]:
    newest = points[-1]
    if baseline is None:
        return DriftState.TOO_FEW_RUNS, "The blessed run did not measure this."
    if baseline.run_id == newest.run_id:
        if len(points) > 1 and any(point.differs_in for point in points):
            return DriftState.INCOMPARABLE, f"No earlier run can be compared: {_all_differences(points)} changed."
        return DriftState.TOO_FEW_RUNS, f"Nothing was measured after {name}."
    if baseline.differs_in:
        changed = ", ".join(baseline.differs_in)
        return DriftState.INCOMPARABLE, f"Cannot be compared with {name}: {changed} changed."
    if not (math.isfinite(baseline.effect) and math.isfinite(newest.effect)):
        return DriftState.INCOMPARABLE, f"Cannot be compared with {name}: a figure is not finite."
    change = f"{baseline.effect:.4g} -> {newest.effect:.4g}"
    if _outside(newest.effect, baseline.effect_interval) and _outside(baseline.effect, newest.effect_interval):
        better = (newest.effect < baseline.effect) == (direction is Direction.LOWER_IS_BETTER)
        quality = "better" if better else "worse"
        return DriftState.MOVED, f"Moved beyond both intervals since {name}, for the {quality}: {change}."
    return DriftState.WITHIN, f"Within the intervals of {name}: {change}."


def _outside(effect: float, interval: Interval) -> bool:
    return effect < interval.lower or effect > interval.upper


def _all_differences(points: tuple[DriftPoint, ...]) -> str:
    return ", ".join(sorted({difference for point in points for difference in point.differs_in}))
