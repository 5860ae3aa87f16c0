"""What the branch page draws of one metric: marks with their intervals, control charts, and where lines break. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from q36eval.drift import AgainstBlessed, BranchDrift, DriftPoint, DriftState, MetricDrift
from q36eval.gate.report import CriterionResult
from q36eval.metrics import metric_of, metric_of_key
from q36eval.records import Direction
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
    something of the deployment changed, and what. `signals` are the places where a chart was beyond its limit. `margin`
    and `floor` are the policy's margin and the reference's own noise as effects, where there are such.
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
    margin: float | None = None
    floor: float | None = None


def drift_picture(metric: MetricDrift, most_runs: int, judged: CriterionResult | None = None) -> DriftPicture:
    """The picture of a metric's newest runs, at most so many; the baseline is among them if it is one of them.

    `judged` is the criterion over it as the newest verdict has it.
    """
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
        margin=None if judged is None else margin_as_effect(judged),
        floor=None if judged is None else floor_as_effect(judged),
    )


def margin_as_effect(judged: CriterionResult) -> float | None:
    """Where a criterion's margin lies among the effects of its metric; None where it holds against the blessed run, or
    judges something else than the effect.

    A recovery is of the reference's figure: its margin is drawn for that of the newest verdict.
    """
    margin, reference = judged.margin, judged.reference_value
    if margin.against == "blessed":
        return None
    if margin.kind in ("max_value", "max_count"):
        return margin.value
    if margin.kind == "max_increase":
        return -margin.value if judged.direction is Direction.HIGHER_IS_BETTER else margin.value
    if margin.kind == "min_retention":
        return 1 / margin.value
    if margin.kind == "min_recovery":
        if metric_of(judged.probe, judged.metric).estimator == "ratio":
            return margin.value
        return None if reference is None else (margin.value - 1) * reference
    return None


def floor_as_effect(judged: CriterionResult) -> float | None:
    """What the reference loses against itself, where the effect is that figure."""
    floor = judged.noise_floor
    return floor.loss if floor is not None and judged.margin.kind == "max_value" else None


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


def in_order(drift: BranchDrift) -> list[MetricDrift]:
    """What drifts for the worse first, then whatever is not stable."""
    return sorted(drift.metrics, key=lambda one: (not one.watched, ORDER.index(one.state), not one.worse, one.key))


def holds(key: str, text: str) -> bool:
    """Whether a metric's title or key holds a text of small letters."""
    described, slice = metric_of_key(key)
    return text in key.lower() or text in described.titled(slice).lower()


def since_run(drift: BranchDrift) -> str | None:
    """The run that most of what drifts moved with, of what drifts for the worse where any does."""
    drifting = [one for one in drift.metrics if one.watched and one.state is DriftState.DRIFTING]
    moved = [one for one in drifting if one.worse] or drifting
    runs = Counter(one.since_run_id for one in moved if one.since_run_id is not None)
    return runs.most_common(1)[0][0] if runs else None


def alarms_words(drift: BranchDrift) -> str:
    """What decides whether a branch drifts, and how often a stable one is said to."""
    baseline = "the blessed run" if drift.blessed_run_id else "the oldest run that compares (none is blessed)"
    return (
        f"{drift.watched} metrics decide it, over {drift.runs:,} runs, from {baseline} on. While nothing changes and "
        f"runs scatter normally and independently, they raise one false alarm in {drift.in_control_run_length:,.0f} "
        "runs, or fewer."
    )


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
