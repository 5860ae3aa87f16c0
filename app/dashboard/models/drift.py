"""What the branch page draws of one metric: marks with their intervals, control charts, and where lines break. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from q36eval.drift import AgainstBlessed, BranchDrift, DriftPoint, DriftState, MetricDrift
from q36eval.reports.text import number

STATE_LABELS = {
    DriftState.DRIFTING: ("▲ DRIFTING", "red"),
    DriftState.STABLE: ("✓ STABLE", "green"),
    DriftState.TOO_FEW_RUNS: ("… TOO FEW RUNS", "gray"),
    DriftState.INCOMPARABLE: ("≠ INCOMPARABLE", "orange"),
}
ORDER = (DriftState.DRIFTING, DriftState.INCOMPARABLE, DriftState.TOO_FEW_RUNS, DriftState.STABLE)


@dataclass(frozen=True)
class Mark:
    """One run's effect at its place on the axis; `above` and `below` are the arms of its interval."""

    place: int
    run_id: str
    y: float
    above: float
    below: float
    detail: str


@dataclass(frozen=True)
class ControlLine:
    """Where a control chart stood after each run, as a share of its limit: beyond 1 on either side it signals."""

    name: str
    places: tuple[int, ...]
    shares: tuple[float | None, ...]


@dataclass(frozen=True)
class DriftPicture:
    """A metric over its newest runs, by place on the axis; `labels` say when each was.

    Every one of `lines` joins only runs that compare; `apart` do not compare with the newest. `changes` say where
    something of the deployment changed, and what. `signals` are the places where a chart was beyond its limit.
    """

    labels: tuple[str, ...]
    lines: tuple[tuple[Mark, ...], ...]
    apart: tuple[Mark, ...]
    baseline: tuple[Mark, ...]
    band: tuple[float, float] | None
    changes: tuple[tuple[int, str], ...]
    control: tuple[ControlLine, ...]
    signals: tuple[int, ...]
    change_points: tuple[int, ...]


def drift_picture(metric: MetricDrift, most_runs: int) -> DriftPicture:
    """The picture of a metric's newest runs, at most so many; the baseline is among them if it is one of them."""
    points = metric.points[-most_runs:]
    finite = [(place, point) for place, point in enumerate(points) if math.isfinite(point.effect)]
    joined = [(place, point) for place, point in finite if point.comparable]
    baseline = [_mark(place, point) for place, point in finite if point.run_id == metric.baseline_run_id]
    return DriftPicture(
        labels=tuple(f"{point.started:%Y-%m-%d %H:%M}" for point in points),
        lines=tuple(
            tuple(_mark(place, point) for place, point in group)
            for _, group in groupby(joined, key=lambda entry: entry[1].line)
        ),
        apart=tuple(_mark(place, point) for place, point in finite if not point.comparable),
        baseline=tuple(baseline),
        band=_band(metric),
        changes=tuple(
            (i, ", ".join(point.identity_changes)) for i, point in enumerate(points) if point.identity_changes
        ),
        control=_control(points),
        signals=tuple(place for place, point in enumerate(points) if point.signal),
        change_points=tuple(place for place, point in enumerate(points) if point.run_id in metric.change_points),
    )


def _mark(place: int, point: DriftPoint) -> Mark:
    interval = point.effect_interval
    detail = (
        f"{point.run_id}: effect {number(point.effect)} [{number(interval.lower)}, {number(interval.upper)}], "
        f"value {number(point.value)}"
    )
    if point.breaks:
        detail += f"; does not join the run before it: {', '.join(point.breaks)}"
    if point.identity_changes:
        detail += f"; changed: {', '.join(point.identity_changes)}"
    above, below = interval.upper - point.effect, point.effect - interval.lower
    return Mark(place, point.run_id, point.effect, _arm(above), _arm(below), detail)


def _arm(length: float) -> float:
    return max(0.0, length) if math.isfinite(length) else 0.0


def _band(metric: MetricDrift) -> tuple[float, float] | None:
    """The baseline's own interval."""
    for point in metric.points:
        interval = point.effect_interval
        if point.run_id == metric.baseline_run_id and math.isfinite(interval.upper - interval.lower):
            return interval.lower, interval.upper
    return None


def _control(points: Sequence[DriftPoint]) -> tuple[ControlLine, ...]:
    """The charts that say anything, both CUSUMs on their own sides of zero."""
    charts = (
        ("EWMA", [_share(point.ewma, point.ewma_limit) for point in points]),
        ("CUSUM up", [_share(point.cusum_high, point.cusum_limit) for point in points]),
        ("change of level", [_share(point.shift, point.shift_limit) for point in points]),
        ("CUSUM down", [_share(point.cusum_low, point.cusum_limit, -1.0) for point in points]),
    )
    places = tuple(range(len(points)))
    return tuple(
        ControlLine(name, places, tuple(shares))
        for name, shares in charts
        if any(share is not None for share in shares)
    )


def _share(value: float | None, limit: float | None, sign: float = 1.0) -> float | None:
    if value is None or limit is None or not (math.isfinite(value) and limit > 0):
        return None
    return sign * value / limit


def state_label(state: DriftState, worse: bool) -> tuple[str, str]:
    """Symbol with words, and a Streamlit colour; a move for the better is not alarming."""
    label, colour = STATE_LABELS[state]
    if state is not DriftState.DRIFTING:
        return label, colour
    return (f"{label} FOR THE WORSE", colour) if worse else (f"{label} FOR THE BETTER", "blue")


def in_order(drift: BranchDrift, text: str = "") -> list[MetricDrift]:
    """Metrics whose key holds the text: what drifts for the worse first, then whatever is not stable."""
    holding = (metric for metric in drift.metrics if text in metric.key.lower())
    return sorted(holding, key=lambda one: (not one.watched, ORDER.index(one.state), not one.worse, one.key))


def against_words(against: AgainstBlessed | None) -> str:
    """The newest run held against the blessed one, item by item."""
    if against is None:
        return ""
    if against.interval is None or against.effect is None:
        return f"Not paired with the blessed run: {against.note}"
    sign = "×" if against.no_change == 1.0 else "+" if against.effect > 0 else ""
    moved = "leaves out no change" if against.moved else "holds no change"
    return (
        f"Paired with the blessed run over {against.clusters} clusters: {sign}{number(against.effect)} "
        f"[{number(against.interval.lower)}, {number(against.interval.upper)}], which {moved}."
    )


def change_rows(drift: BranchDrift) -> list[dict[str, str]]:
    """Runs with which something of the deployment changed, newest first."""
    return [
        {"when (UTC)": f"{one.started:%Y-%m-%d %H:%M}", "run": one.run_id, "changed": ", ".join(one.changed)}
        for one in drift.changes
    ]
