"""The noise floor in the gate: a margin below the reference's loss against itself is refused. Pure."""

import math
from collections.abc import Iterable, Sequence

from q36eval.gate.policy import Criterion, Policy
from q36eval.metrics import METRICS, NOISE_FLOOR, metric_of
from q36eval.records import Measurement, ProbeName, Reason, Record
from q36eval.stats import loss_limit

FLOOR_BY_PERTURBATION = "kl_noise_floor"
"""The measurement with KL by perturbation (slice), and the largest of them as `all`."""


class NoiseFloor(Record):
    """The reference's loss against itself: `loss` in `floor_unit`, `source` names the perturbation."""

    loss: float
    source: str


def floor_metric(metric: str) -> str:
    """The name of the measurement with a metric's floor for each slice."""
    return f"{metric}{NOISE_FLOOR}"


def floored_metrics() -> list[str]:
    """The KL probe's metrics with a measured floor, in the unit of their margin's loss (`floor_unit`)."""
    return [name for (probe, name), metric in METRICS.items() if probe is ProbeName.KL and metric.floor_unit]


def floor_unit(metric: str) -> str:
    """The unit of a metric's floor."""
    return metric_of(ProbeName.KL, metric).floor_unit or "nats/token"


def is_floor(probe: ProbeName, metric: str) -> bool:
    """Whether a measurement of that probe is a metric's floor."""
    floored = METRICS.get((probe, metric.removesuffix(NOISE_FLOOR)))
    return metric.endswith(NOISE_FLOOR) and floored is not None and floored.floor_unit is not None


def of_reference_alone(probe: ProbeName, metric: str) -> bool:
    """Whether the metric belongs to the noise floor and is thus the same for every branch of one reference."""
    return (probe is ProbeName.KL and metric == FLOOR_BY_PERTURBATION) or is_floor(probe, metric)


def has_floor(probe: ProbeName, metric: str) -> bool:
    """Whether the metric can have a floor, measured or not."""
    return metric_of(probe, metric).moved_by_noise


def floor_of(criterion: Criterion, measurements: Iterable[Measurement]) -> NoiseFloor | None:
    """The criterion's floor: the largest one measured for its metric and slice; None if none was measured.

    A group of tokens across documents (`kind=json`) has no separate floor: the floor over all tokens is used.
    """
    if not has_floor(criterion.probe, criterion.metric):
        return None
    metric = floor_metric(criterion.metric)
    floors = [m for m in measurements if m.probe is criterion.probe and m.metric == metric]
    of_slice, stand_in = [m for m in floors if m.slice == criterion.slice], ""
    if not of_slice and "=" in criterion.slice:
        of_slice = [m for m in floors if m.slice == "all"]
        stand_in = f", over all tokens for want of one of {criterion.slice}"
    if not of_slice:
        return None
    # the note breaks ties, so that the order of measurements has no effect
    worst = max(of_slice, key=lambda m: (math.inf if math.isnan(m.value) else m.value, m.note))
    return NoiseFloor(loss=worst.value, source=worst.note + stand_in)


def below_floor(criterion: Criterion, floor: NoiseFloor | None) -> Reason | None:
    """Why the criterion's margin cannot be judged; None if it can, or if no floor was measured.

    A margin equal to the floor is judged; a NaN floor refuses every margin.
    """
    # for a share, the limit for its threshold; a derived threshold is valid if the margins it multiplies are
    share = criterion.margin.kind == "max_share"
    limit = loss_limit(criterion.margin) if not share else criterion.margin.beyond or math.inf
    if floor is None or limit >= floor.loss:
        return None
    unit = floor_unit(criterion.metric)
    return Reason(
        "below-noise-floor",
        f"its margin of {_words(criterion, limit)} is below the noise floor of {floor.loss:.3g} {unit}, "
        f"the reference's difference from itself ({floor.source})",
    )


def margins_below_floor(policy: Policy, measurements: Sequence[Measurement]) -> list[str]:
    """One sentence per criterion whose margin is below its floor; advisory ones too, because they would mislead."""
    reasons = [(c.id, below_floor(c, floor_of(c, measurements))) for c in policy.criteria]
    return [f"Criterion {name!r} cannot be judged: {why.text}; widen the margin." for name, why in reasons if why]


def _words(criterion: Criterion, limit: float) -> str:
    if criterion.margin.kind == "max_share":
        return f"{limit:.4g} {floor_unit(criterion.metric)} (its threshold)"
    given = f"{criterion.margin.value:.4g}"
    if criterion.margin.kind == "min_retention":
        return f"{given} ({limit:.3g} nats/token)"
    return f"{given} {floor_unit(criterion.metric)}"
