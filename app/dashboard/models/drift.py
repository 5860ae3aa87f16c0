"""What the branch page draws of one metric: marks with their intervals, where lines break and a drift began. Pure."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from q36eval.drift import ALPHA, BranchDrift, DriftPoint, DriftState, MetricDrift
from q36eval.gate.report import CriterionResult
from q36eval.metrics import metric_of, metric_of_key
from q36eval.records import Direction
from q36eval.reports.text import number

STATE_LABELS = {
    DriftState.DRIFTING: ("▲ DRIFTING", "red"),
    DriftState.STABLE: ("✓ STABLE", "green"),
    DriftState.NOT_BLESSED: ("… NOT BLESSED", "gray"),
    DriftState.INCOMPARABLE: ("≠ INCOMPARABLE", "orange"),
    DriftState.CHART_ONLY: ("– CHART ONLY", "gray"),
}
ORDER = (
    DriftState.DRIFTING,
    DriftState.INCOMPARABLE,
    DriftState.NOT_BLESSED,
    DriftState.STABLE,
    DriftState.CHART_ONLY,
)


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
class DriftPicture:
    """A metric over its newest runs, by place on the axis; `labels` say when each was.

    Every one of `lines` joins only runs that compare; `apart` do not compare with the baseline: the blessed run, or
    the newest where none is blessed. `changes` say where something of the deployment changed, and what. `since` is the
    run with which a drift began. `margin` and `floor` are the policy's margin and the reference's own noise as effects,
    where there are such.
    """

    labels: tuple[str, ...]
    lines: tuple[tuple[Mark, ...], ...]
    apart: tuple[Mark, ...]
    baseline: tuple[Mark, ...]
    band: tuple[float, float] | None
    changes: tuple[tuple[int, str], ...]
    since: tuple[Mark, ...] = ()
    margin: float | None = None
    floor: float | None = None


def drift_picture(metric: MetricDrift, most_runs: int, judged: CriterionResult | None = None) -> DriftPicture:
    """The picture of a metric's newest runs, at most so many; the baseline is among them if it is one of them.

    `judged` is the criterion over it as the newest verdict has it.
    """
    points = metric.points[-most_runs:]
    finite = [(place, point) for place, point in enumerate(points) if math.isfinite(point.effect)]
    return DriftPicture(
        labels=tuple(f"{point.started:%Y-%m-%d %H:%M}" for point in points),
        lines=tuple(
            tuple(_mark(place, point) for place, point in group)
            for apart, group in groupby(finite, key=lambda entry: bool(entry[1].apart))
            if not apart
        ),
        apart=tuple(_mark(place, point) for place, point in finite if point.apart),
        baseline=tuple(_mark(place, point) for place, point in finite if point.run_id == metric.blessed_run_id),
        band=_band(metric),
        changes=tuple(
            (i, ", ".join(point.identity_changes)) for i, point in enumerate(points) if point.identity_changes
        ),
        since=tuple(_mark(place, point) for place, point in finite if point.run_id == metric.since_run_id),
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
    if point.apart:
        detail += f"; does not compare: {', '.join(point.apart)}"
    if point.identity_changes:
        detail += f"; changed: {', '.join(point.identity_changes)}"
    above, below = interval.upper - point.effect, point.effect - interval.lower
    return Mark(place, point.run_id, point.effect, _arm(above), _arm(below), detail)


def _arm(length: float) -> float:
    return max(0.0, length) if math.isfinite(length) else 0.0


def _band(metric: MetricDrift) -> tuple[float, float] | None:
    """The blessed run's own interval."""
    for point in metric.points:
        interval = point.effect_interval
        if point.run_id == metric.blessed_run_id and math.isfinite(interval.upper - interval.lower):
            return interval.lower, interval.upper
    return None


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
    """What decides whether a branch drifts, and how often a stable one is reported as drifting."""
    return (
        f"{drift.watched} metrics decide it: the newest of {drift.runs:,} runs is paired with the blessed one, item by "
        f"item. Runs that do not differ are reported as drifting in at most {ALPHA:.0%} of comparisons."
    )


def change_rows(drift: BranchDrift) -> list[dict[str, str]]:
    """Runs with which something of the deployment changed, newest first."""
    return [
        {"when (UTC)": f"{one.started:%Y-%m-%d %H:%M}", "run": one.run_id, "changed": ", ".join(one.changed)}
        for one in drift.changes
    ]
