"""Measurements of the KL probe that are made from sums over documents: means, perplexities, and what was not finite."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.gate import NON_FINITE
from q36eval.records import (
    Clusters,
    Counts,
    Direction,
    Estimator,
    Interval,
    ItemOutcome,
    Measurement,
    ProbeName,
)
from q36eval.stats import summarize

ALL = "all"

NAME_CHARACTERS = 12


@dataclass(frozen=True)
class Metric:
    """One metric: the per-document sum it is made of, the reference's where it is paired, and one token's bounds."""

    name: str
    unit: str
    column: str
    direction: Direction = Direction.LOWER_IS_BETTER
    estimator: Estimator = "mean"
    reference_column: str | None = None
    bounds: tuple[float, float] | None = None


KL = Metric("kl_divergence", "nats/token", "forward_kl")
TOP1 = Metric("top1_agreement", "fraction", "top1_agrees", Direction.HIGHER_IS_BETTER, bounds=(0.0, 1.0))
PERPLEXITY = Metric("perplexity", "perplexity", "branch_nll", estimator="perplexity", reference_column="reference_nll")
DELTA_P_RMS = Metric(
    "delta_p_rms", "probability", "delta_p_squared", estimator="root_mean_square", bounds=(0.0, math.inf)
)
"""llama.cpp's "RMS delta p": the root mean square over tokens of q(label) - p(label)."""

METRICS = (
    KL,
    Metric("reverse_kl_divergence", "nats/token", "reverse_kl"),
    TOP1,
    PERPLEXITY,
    DELTA_P_RMS,
    # unbounded on purpose: between bounds a bet must allow for labels that turn from certain to impossible
    Metric(
        "label_probability",
        "probability",
        "branch_p",
        Direction.HIGHER_IS_BETTER,
        "paired_mean",
        reference_column="reference_p",
    ),
)
"""Of everything and of each slice. The effect of `label_probability` is llama.cpp's "mean delta p"."""

GROUP_METRICS = (KL, TOP1, PERPLEXITY, DELTA_P_RMS)
"""By kind of token, position and the reference's entropy."""


def document_measurements(outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Everything that follows from the documents' sums, over all of them and by slice; non-finite tokens counted."""
    yield non_finite_tokens(outcomes)
    yield from _of_slice(ALL, outcomes)
    yield from _macro_average(outcomes)
    for name in sorted({outcome.stratum for outcome in outcomes}):
        yield from _of_slice(name, [outcome for outcome in outcomes if outcome.stratum == name])


def measurement(metric: Metric, slice_name: str, clusters: Clusters, note: str = "") -> Measurement:
    """One metric from its evidence."""
    scored, errored = sum(clusters.units), sum(clusters.errored)
    value, reference_value, effect, interval = summarize(clusters, metric.estimator)
    return Measurement(
        probe=ProbeName.KL,
        metric=metric.name,
        slice=slice_name,
        unit=metric.unit,
        direction=metric.direction,
        estimator=metric.estimator,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=Counts(total=scored + errored, scored=scored, errored=errored),
        clusters=clusters,
        note=note,
    )


def left_out(missing: int, scored: int) -> str:
    """What a mean does not hold, in words: `missing` of `scored` tokens have no finite figure; empty where all have."""
    return f"without {missing:,} of {scored:,} scored tokens, whose figures are not finite" if missing else ""


def joined(*notes: str) -> str:
    """The notes that say anything, as one."""
    return "; ".join(note for note in notes if note)


def _finite_of(details: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """How many scored tokens have no finite figure, of how many."""
    seen = [(int(detail["tokens"]), int(detail["finite_tokens"])) for detail in details if "finite_tokens" in detail]
    return sum(tokens - finite for tokens, finite in seen), sum(tokens for tokens, _ in seen)


def document_names(outcomes: Iterable[ItemOutcome]) -> tuple[str, ...]:
    """What documents are called in the evidence, by which two runs pair: the beginning of the hash of their text."""
    return tuple(outcome.item_key[:NAME_CHARACTERS] for outcome in outcomes)


def errored_tokens(outcome: ItemOutcome) -> int:
    """How many tokens of a document gave no figure because the engine failed."""
    return 0 if outcome.branch.error is None else int(outcome.branch.detail["tokens"])


def _of_slice(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    details = [outcome.branch.detail for outcome in outcomes]
    scored = tuple(int(detail.get("finite_tokens", 0)) for detail in details)
    if not sum(scored):
        return
    worst = max(float(detail.get("max_forward_kl", 0.0)) for detail in details)
    for metric in METRICS:
        clusters = Clusters(
            units=scored,
            branch=_column(details, metric.column),
            reference=None if metric.reference_column is None else _column(details, metric.reference_column),
            errored=tuple(map(errored_tokens, outcomes)),
            bounds=metric.bounds,
            names=document_names(outcomes),
        )
        note = f"{len(outcomes)} documents; worst token {worst:.3g} nats" if metric is KL else ""
        yield measurement(metric, slice_name, clusters, joined(note, left_out(*_finite_of(details))))


def _macro_average(outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """The slices' means, equally weighted: how many documents a slice happens to hold does not matter."""
    details = [outcome.branch.detail for outcome in outcomes]
    units = tuple(int(detail.get("finite_tokens", 0)) for detail in details)
    if not sum(units):
        return
    strata = tuple(outcome.stratum for outcome in outcomes)
    clusters = Clusters(
        units=units,
        branch=_column(details, KL.column),
        errored=tuple(map(errored_tokens, outcomes)),
        strata=strata,
        names=document_names(outcomes),
    )
    metric = Metric("kl_macro_average", KL.unit, KL.column, estimator="stratified_mean")
    note = f"{len(set(strata))} slices, equally weighted"
    yield measurement(metric, ALL, clusters, joined(note, left_out(*_finite_of(details))))


def _column(details: Iterable[dict[str, Any]], name: str) -> tuple[float, ...]:
    """A sum of every document; an errored one has no sums, and none of its tokens is scored."""
    return tuple(float(detail[name]) if "finite_tokens" in detail else 0.0 for detail in details)


def non_finite_tokens(outcomes: Sequence[ItemOutcome]) -> Measurement:
    """The census of scored tokens without a finite figure, whatever else is measured of them."""
    missing, scored = _finite_of(outcome.branch.detail for outcome in outcomes if outcome.branch.error is None)
    errored = sum(map(errored_tokens, outcomes))
    return Measurement(
        probe=ProbeName.KL,
        metric=NON_FINITE,
        unit="tokens",
        direction=Direction.LOWER_IS_BETTER,
        estimator="census",
        value=float(missing),
        effect=float(missing),
        effect_interval=Interval(lower=missing, upper=missing, level=0.95, method="census"),
        counts=Counts(total=scored + errored, scored=scored, errored=errored),
    )
