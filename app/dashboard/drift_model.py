"""What the drift page draws of one metric: marks with their own intervals, and where the line must break. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.dashboard.overview_model import moved_for_the_worse
from q36eval.drift import DriftPoint, DriftState, MetricDrift
from q36eval.history import RunRecord
from q36eval.reports._text import number

STATE_LABELS = {
    DriftState.DRIFTING: ("▲ DRIFTING", "red"),
    DriftState.STABLE: ("✓ STABLE", "green"),
    DriftState.TOO_FEW_RUNS: ("… TOO FEW RUNS", "gray"),
    DriftState.INCOMPARABLE: ("≠ INCOMPARABLE", "orange"),
}


@dataclass(frozen=True)
class DriftMark:
    """One run's effect; `y` is None where the line breaks. `above` and `below` are the arms of its interval."""

    run_id: str
    y: float | None
    above: float
    below: float
    detail: str


@dataclass(frozen=True)
class DriftLines:
    """Marks of one metric. `order` has id and time of all runs, oldest first; `band` is the baseline's interval."""

    order: tuple[tuple[str, datetime], ...]
    comparable: tuple[DriftMark, ...]
    incomparable: tuple[DriftMark, ...]
    baseline: tuple[DriftMark, ...]
    band: tuple[float, float] | None


def drift_lines(metric: MetricDrift) -> DriftLines:
    """Marks of a metric. Runs that cannot be compared with the newest stand apart and break the line."""
    comparable = []
    for point in metric.points:
        fits = point.comparable and math.isfinite(point.effect)
        comparable.append(_mark(point) if fits else DriftMark(point.run_id, None, 0.0, 0.0, ""))
    apart = [_mark(p) for p in metric.points if not p.comparable and math.isfinite(p.effect)]
    baseline = [p for p in metric.points if p.run_id == metric.baseline_run_id and math.isfinite(p.effect)]
    return DriftLines(
        order=tuple((point.run_id, point.started) for point in metric.points),
        comparable=tuple(comparable),
        incomparable=tuple(apart),
        baseline=tuple(_mark(point) for point in baseline),
        band=_band(baseline[0]) if baseline else None,
    )


def _mark(point: DriftPoint) -> DriftMark:
    interval = point.effect_interval
    above, below = interval.upper - point.effect, point.effect - interval.lower
    detail = (
        f"{point.run_id}: effect {number(point.effect)} [{number(interval.lower)}, {number(interval.upper)}], "
        f"value {number(point.value)}"
    )
    if point.breaks:
        detail += f"; does not join the run before it: {', '.join(point.breaks)}"
    return DriftMark(point.run_id, point.effect, _arm(above), _arm(below), detail)


def _arm(length: float) -> float:
    return max(0.0, length) if math.isfinite(length) else 0.0


def _band(point: DriftPoint) -> tuple[float, float] | None:
    interval = point.effect_interval
    return (interval.lower, interval.upper) if math.isfinite(interval.upper - interval.lower) else None


def state_label(metric: MetricDrift) -> tuple[str, str]:
    """Symbol with words, and a Streamlit colour; a move for the better is not alarming."""
    label, colour = STATE_LABELS[metric.state]
    if metric.state is not DriftState.DRIFTING:
        return label, colour
    return (f"{label} FOR THE WORSE", colour) if moved_for_the_worse(metric) else (f"{label} FOR THE BETTER", "blue")


def judged_keys(run: RunRecord | None) -> set[str]:
    """Keys of the measurements that the run's policy judged."""
    if run is None or run.report is None:
        return set()
    return {f"{result.probe}.{result.metric}[{result.slice}]" for result in run.report.criteria}


def select(metrics: Sequence[MetricDrift], which: str, judged: set[str]) -> list[MetricDrift]:
    """Metrics to show, those that moved first. `which` is one of `CHOICES`."""
    moved = [metric for metric in metrics if metric.state is DriftState.DRIFTING]
    rest = [metric for metric in metrics if metric.state is not DriftState.DRIFTING]
    if which == MOVED_ONLY:
        return moved
    return [metric for metric in moved + rest if which == EVERYTHING or metric.key in judged]


JUDGED, MOVED_ONLY, EVERYTHING = "judged by the policy", "moved", "everything measured"
CHOICES = (JUDGED, MOVED_ONLY, EVERYTHING)
