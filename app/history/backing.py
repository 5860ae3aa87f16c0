"""Whether the figures of a run are what its items give, as far as that shows without the suite they are of.

An archive that somebody edited, or that lacks the outcomes, has figures that rest on nothing. Held against the items
are how many a figure is of, sums of accuracies and divergences, and which canaries failed. Figures of the weights have
no items, and neither has what is computed from another figure. Of what only an endpoint shows, and of an attribution,
no items are kept: their figures are held against their own clusters.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from q36eval.canaries.must_pass import Standing, standing
from q36eval.canaries.outcomes import KEY_CHARACTERS
from q36eval.evals.paired_clusters import called as items_called
from q36eval.kl.measurements import called as document_called
from q36eval.records import Clusters, ItemOutcome, Measurement, ProbeName

TOLERANCE = 1e-6
"""Relative: sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is looked at of an item, whose texts may take megabytes; NaN where it has no such figure.

    `branch` and `reference` are its scores, 0 both where either side gave none: such an item counts on neither side.
    """

    group: str
    cluster: str
    key: str
    branch: float
    reference: float
    branch_failed: float
    reference_failed: float
    flipped: float
    forward_kl: float

    @staticmethod
    def of(item: ItemOutcome) -> "Outcome":
        """Of an item."""
        # a document that errored has no sums, and none of its tokens is scored
        forward_kl = item.branch.detail.get("forward_kl", math.nan) if "finite_tokens" in item.branch.detail else 0.0
        branch, reference = item.branch.score, item.reference.score
        scored = branch is not None and reference is not None
        return Outcome(
            group=sys.intern(item.group),
            cluster=item.cluster,
            key=item.item_key,
            branch=branch if branch is not None and scored else 0.0,
            reference=reference if reference is not None and scored else 0.0,
            branch_failed=1.0 - branch if branch is not None and scored else 0.0,
            reference_failed=1.0 - reference if reference is not None and scored else 0.0,
            flipped=float(standing(item) is Standing.FLIPPED),
            forward_kl=float(forward_kl) if isinstance(forward_kl, int | float) else math.nan,
        )


HELD_AGAINST_ITEMS = frozenset(
    {"accuracy", "failure_rate", "fixed_prompt_failure_rate", "must_pass_flips", "kl_divergence"}
)
"""Figures whose sums over the items are compared: without their clusters and the names of these they are of nothing."""

ATTRIBUTED = "attributed_kl"
"""What `attribute` measures: figures over documents of which no run keeps more than their sums."""


def unbacked(measurements: Sequence[Measurement], items: Iterable[ItemOutcome]) -> Iterator[str]:
    """A clause on every figure that its items do not give; of the items little is held at a time."""
    by_probe: dict[ProbeName, list[Outcome]] = defaultdict(list)
    for item in items:
        by_probe[item.probe].append(Outcome.of(item))
    for measurement in measurements:
        if measurement.probe is ProbeName.WEIGHTS or measurement.estimator == "derived":
            continue
        without_items = measurement.probe is ProbeName.SERVED or measurement.metric == ATTRIBUTED
        why = _by_its_clusters(measurement) if without_items else _why(measurement, by_probe[measurement.probe])
        if why is not None:
            yield f"{measurement.key} {why}"


def _by_its_clusters(measurement: Measurement) -> str | None:
    """Of a figure without items; what is counted has no clusters either."""
    clusters = measurement.clusters
    units = 0 if clusters is None else sum(clusters.units)
    if clusters is None or units == 0:
        return None
    for whose, value, sums in (
        ("the branch", measurement.value, clusters.branch),
        ("the reference", measurement.reference_value, clusters.reference),
    ):
        if value is not None and sums is not None and not _same(value, math.fsum(sums) / units):
            return f"says {value:g} of {whose} where its parts give {math.fsum(sums) / units:g}"
    return None


def _why(measurement: Measurement, items: Sequence[Outcome]) -> str | None:
    clusters = measurement.clusters
    of_tokens = measurement.probe is ProbeName.KL and clusters is None  # counted in tokens, of which items hold many
    units = min(1, measurement.counts.scored) if of_tokens else measurement.counts.scored
    if clusters is not None:
        units = len(clusters.units)
    if units > len(items):
        return f"is of {units:,} outcomes, of which the archive holds {len(items):,}"
    held = measurement.metric in HELD_AGAINST_ITEMS
    if clusters is None:
        return "does not say of which items it is" if held else None
    if measurement.estimator == "census" and not _same(measurement.value, sum(clusters.branch)):
        return f"says {measurement.value:g} where its parts add up to {sum(clusters.branch):g}"
    if held and clusters.names is None and measurement.probe is not ProbeName.EVALS:
        return "does not say of which items it is"
    if clusters.names is not None and len(set(clusters.names)) < len(clusters.names):
        return "counts an item twice"
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
    names, metric = clusters.names or (), measurement.metric
    if metric not in HELD_AGAINST_ITEMS or "=" in measurement.slice:  # of parts of the documents
        return None
    named = NAMED[measurement.probe](items)
    if names and named.keys() >= set(names):
        own = [item for name in names for item in named[name]]
    elif measurement.probe is not ProbeName.EVALS:
        return math.nan, None
    else:
        own = [item for item in items if item.group == measurement.slice]
        if not own and ("/" in measurement.slice or measurement.slice == "suite"):  # of parts of the clusters
            return None
    if metric == "must_pass_flips":
        return _sum(own, lambda item: item.flipped), None
    if metric == "kl_divergence":
        return _sum(own, lambda item: item.forward_kl), None
    if metric == "accuracy":
        return _sum(own, lambda item: item.branch), _sum(own, lambda item: item.reference)
    return _sum(own, lambda item: item.branch_failed), _sum(own, lambda item: item.reference_failed)


def _questions(items: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    return {f"{item.cluster}#{item.key[:KEY_CHARACTERS]}": [item] for item in items}


def _clusters(items: Sequence[Outcome], name: Callable[[str, list[str]], str]) -> dict[str, list[Outcome]]:
    """By the names of clusters what is in each, over all slices or in one of them."""
    sources: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for item in items:
        sources[(item.cluster,)].append(item)
        sources[item.cluster, item.group].append(item)
    return {name(place[0], [item.key for item in own]): own for place, own in sources.items()}


NAMED: dict[ProbeName, Callable[[Sequence[Outcome]], dict[str, list[Outcome]]]] = {
    ProbeName.CANARIES: _questions,
    ProbeName.KL: lambda items: _clusters(items, lambda _, keys: document_called(keys)),
    ProbeName.EVALS: lambda items: _clusters(items, items_called),
}
"""By the names of a probe's clusters the items of each."""


def _sum(items: Sequence[Outcome], of: Callable[[Outcome], float]) -> float:
    return math.fsum(map(of, items))


def _same(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
