"""The noise floor as the gate sees it: a margin below what the reference loses against itself is refused. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from q36eval.records import Measurement, ProbeName, Record
from q36eval.stats import loss_limit

if TYPE_CHECKING:
    from q36eval.gate.policy import Criterion, Policy

FLOORED_METRICS = ("kl_divergence", "reverse_kl_divergence", "perplexity")
"""Metrics of the KL probe that have a floor, each in the unit of its margin's loss (all in nats/token)."""

FLOOR_BY_PERTURBATION = "kl_noise_floor"
"""The measurement that holds KL by perturbation (its slice), and as `all` the largest of them."""


class NoiseFloor(Record):
    """What the reference loses against itself: `loss` in nats/token, `source` says under which perturbation."""

    loss: float
    source: str


def floor_metric(metric: str) -> str:
    """Name of the measurement that holds a metric's floor, slice by slice."""
    return f"{metric}_noise_floor"


def is_floor(metric: str) -> bool:
    """Whether a measurement of the KL probe holds a metric's floor."""
    return metric in map(floor_metric, FLOORED_METRICS)


def of_reference_alone(measurement: Measurement) -> bool:
    """Whether it is a figure of the noise floor: the same for every branch of one reference."""
    by_perturbation = measurement.metric == FLOOR_BY_PERTURBATION
    return measurement.probe is ProbeName.KL and (by_perturbation or is_floor(measurement.metric))


def has_floor(probe: ProbeName, metric: str) -> bool:
    """Whether a floor belongs to that metric."""
    return probe is ProbeName.KL and metric in FLOORED_METRICS


def floor_of(criterion: "Criterion", measurements: Iterable[Measurement]) -> NoiseFloor | None:
    """The criterion's floor: the largest that was measured for its metric and slice; None where none was."""
    if not has_floor(criterion.probe, criterion.metric):
        return None
    wanted = (ProbeName.KL, floor_metric(criterion.metric), criterion.slice)
    found = [m for m in measurements if (m.probe, m.metric, m.slice) == wanted]
    if not found:
        return None
    worst = max(found, key=lambda m: math.inf if math.isnan(m.value) else m.value)
    return NoiseFloor(loss=worst.value, source=worst.note)


def below_floor(criterion: "Criterion", floor: NoiseFloor | None) -> str | None:
    """Why the criterion's margin cannot be judged; None when it can, or where no floor was measured.

    A margin equal to the floor is judged; a floor that is no number refuses every margin.
    """
    limit = loss_limit(criterion.margin)
    if floor is None or limit >= floor.loss:
        return None
    return (
        f"its margin of {_words(criterion, limit)} lies below the noise floor of {floor.loss:.3g} nats/token, what the "
        f"reference loses against itself ({floor.source})"
    )


def margins_below_floor(policy: "Policy", measurements: Sequence[Measurement]) -> list[str]:
    """One sentence for every criterion whose margin its floor refuses; advisory ones too, for they would mislead."""
    reasons = [(c.id, below_floor(c, floor_of(c, measurements))) for c in policy.criteria]
    return [f"Criterion {name!r} cannot be judged: {reason}; widen the margin." for name, reason in reasons if reason]


def _words(criterion: "Criterion", limit: float) -> str:
    given = f"{criterion.margin.value:.4g}"
    return f"{given} ({limit:.3g} nats/token)" if criterion.margin.kind == "min_retention" else f"{given} nats/token"
