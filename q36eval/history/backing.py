"""Whether the figures of a run are what its items give, as far as that shows without the suite they are of.

An archive that somebody edited, or that lacks the outcomes, has figures that rest on nothing. Held against the items
are how many a figure is of, sums of accuracies and divergences, and which canaries failed. Figures of the weights have
no items, and neither has what is computed from another figure.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from q36eval.records import Answer, Clusters, ItemOutcome, Measurement, ProbeName

TOLERANCE = 1e-6
"""Relative: sums of the same numbers in another order."""

KEY_OF_CANARY, KEY_OF_DOCUMENT = 8, 12
"""How many characters of an item's key stand in the name of its cluster."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is looked at of an item, whose texts may take megabytes; NaN where it has no such figure."""

    group: str
    cluster: str
    key: str
    branch: float
    reference: float
    branch_failed: float
    reference_failed: float
    forward_kl: float

    @staticmethod
    def of(item: ItemOutcome) -> "Outcome":
        """Of an item."""
        forward_kl = item.branch.detail.get("forward_kl", math.nan)
        return Outcome(
            group=sys.intern(item.group),
            cluster=item.cluster,
            key=item.item_key[:KEY_OF_DOCUMENT],
            branch=item.branch.score or 0.0,
            reference=item.reference.score or 0.0,
            branch_failed=_failed(item.branch),
            reference_failed=_failed(item.reference),
            forward_kl=float(forward_kl) if isinstance(forward_kl, int | float) else math.nan,
        )


def unbacked(measurements: Sequence[Measurement], items: Iterable[ItemOutcome]) -> Iterator[str]:
    """A clause on every figure that its items do not give; of the items little is held at a time."""
    by_probe: dict[ProbeName, list[Outcome]] = defaultdict(list)
    for item in items:
        by_probe[item.probe].append(Outcome.of(item))
    for measurement in measurements:
        if measurement.probe is ProbeName.WEIGHTS or measurement.estimator == "derived":
            continue
        why = _why(measurement, by_probe[measurement.probe])
        if why is not None:
            yield f"{measurement.key} {why}"


def _why(measurement: Measurement, items: Sequence[Outcome]) -> str | None:
    clusters = measurement.clusters
    of_tokens = measurement.probe is ProbeName.KL and clusters is None  # counted in tokens, of which items hold many
    units = min(1, measurement.counts.scored) if of_tokens else measurement.counts.scored
    if clusters is not None:
        units = len(clusters.units)
    if units > len(items):
        return f"is of {units:,} outcomes, of which the archive holds {len(items):,}"
    if clusters is None:
        return None
    if measurement.estimator == "census" and not _same(measurement.value, sum(clusters.branch)):
        return f"says {measurement.value:g} where its parts add up to {sum(clusters.branch):g}"
    expected = _expected(measurement, clusters, items)
    if expected is None:
        return None
    branch, reference = expected
    if not _same(branch, sum(clusters.branch)):
        return f"counts {sum(clusters.branch):g} of the branch where its items give {branch:g}"
    if reference is not None and clusters.reference is not None and not _same(reference, sum(clusters.reference)):
        return f"counts {sum(clusters.reference):g} of the reference where its items give {reference:g}"
    return None


def _expected(
    measurement: Measurement, clusters: Clusters, items: Sequence[Outcome]
) -> tuple[float, float | None] | None:
    """The sums over branch and reference that the items give; None where items do not say."""
    if measurement.probe is ProbeName.EVALS:
        own = [item for item in items if item.group == measurement.slice]
        if measurement.metric != "accuracy" or not own:
            return None
        return _sum(own, lambda item: item.branch), _sum(own, lambda item: item.reference)
    length = KEY_OF_CANARY if measurement.probe is ProbeName.CANARIES else KEY_OF_DOCUMENT
    canary = measurement.probe is ProbeName.CANARIES
    named = {(f"{item.cluster}#" if canary else "") + item.key[:length]: item for item in items}
    own = [named[name] for name in clusters.names or () if name in named]
    if len(own) < len(clusters.units):
        return None if clusters.names is None else (math.nan, None)
    if measurement.metric in ("failure_rate", "fixed_prompt_failure_rate"):
        return _sum(own, lambda item: item.branch_failed), _sum(own, lambda item: item.reference_failed)
    if measurement.metric == "must_pass_flips":
        return _sum(own, lambda item: item.branch_failed * (1 - item.reference_failed)), None
    if measurement.metric == "kl_divergence" and "=" not in measurement.slice:  # else of parts of the documents
        return _sum(own, lambda item: item.forward_kl), None
    return None


def _sum(items: Sequence[Outcome], of: Callable[[Outcome], float]) -> float:
    return math.fsum(map(of, items))


def _failed(answer: Answer) -> float:
    return 0.0 if answer.score is None else 1.0 - answer.score


def _same(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
