"""From item outcomes to clusters: sums of a value under branch and reference over texts that share a source."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from q36eval.records import Clusters, Counts, ItemOutcome, Schedule
from q36eval.stats import planned_largest

Pair = tuple[float, float]
NAME_CHARACTERS = 12
"""Of a hash: among 14,000 clusters two share one once in three million suites."""

Values = Callable[[ItemOutcome], Pair | None]
"""The branch's value of one item and the reference's; None where either gave none."""


@dataclass(frozen=True)
class PlannedItem:
    """An item of the plan, asked or not: `block` is the one of its group that it belongs to."""

    key: str
    group: str
    cluster: str
    stratum: str
    block: int


def scheduled(clusters: Clusters, outcomes: Iterable[ItemOutcome], planned: Sequence[PlannedItem]) -> Clusters:
    """The same clusters with the block each was asked in and the sizes that were planned, known before any answer.

    `clusters` are those of `outcomes`, in the order of their first ones. As they are where the plan is not known, or a
    cluster lies in several blocks: then only one look may be taken.
    """
    blocks: dict[str, set[int]] = {}
    for item in planned:
        blocks.setdefault(item.cluster, set()).add(item.block)
    names = list(dict.fromkeys(outcome.cluster for outcome in outcomes))
    if not names or any(len(blocks.get(name, ())) != 1 for name in names):
        return clusters
    sizes = Counter(item.cluster for item in planned)
    schedule = Schedule(
        largest=planned_largest(list(sizes.values())), blocks=tuple(min(blocks[name]) for name in names)
    )
    return clusters.model_copy(update={"schedule": schedule})


def is_scored(outcome: ItemOutcome) -> bool:
    """Whether both deployments answered; what errored on either side is never compared, and never wrong."""
    return outcome.branch.score is not None and outcome.reference.score is not None


def scores(outcome: ItemOutcome) -> Pair | None:
    """Both scores, from 0 to 1."""
    branch, reference = outcome.branch.score, outcome.reference.score
    return None if branch is None or reference is None else (branch, reference)


def details(name: str) -> Values:
    """One figure of both answers' detail."""

    def values(outcome: ItemOutcome) -> Pair | None:
        branch, reference = outcome.branch.detail.get(name), outcome.reference.detail.get(name)
        if not is_scored(outcome) or branch is None or reference is None:
            return None
        return float(branch), float(reference)  # JSON writes infinities as text

    return values


def paired_clusters(
    outcomes: Iterable[ItemOutcome],
    values: Values,
    *,
    units: Callable[[ItemOutcome], int] = lambda outcome: 1,
    bounds: tuple[float, float] | None = None,
) -> Clusters:
    """Sums of `units` and `values` per cluster, the units of items without a value apart.

    A value is the item's sum over its units; `bounds` are those of a unit's value. Clusters come in the order of their
    first outcome, each named by what was asked in it.
    """
    outcomes = list(outcomes)
    sums: dict[str, tuple[int, float, float, int]] = {}
    for outcome in outcomes:
        scored, branch_sum, reference_sum, errored = sums.get(outcome.cluster, (0, 0.0, 0.0, 0))
        pair, count = values(outcome), units(outcome)
        if pair is None:
            sums[outcome.cluster] = (scored, branch_sum, reference_sum, errored + count)
        else:
            sums[outcome.cluster] = (scored + count, branch_sum + pair[0], reference_sum + pair[1], errored)
    columns = list(sums.values())
    return Clusters(
        units=tuple(row[0] for row in columns),
        branch=tuple(row[1] for row in columns),
        reference=tuple(row[2] for row in columns),
        errored=tuple(row[3] for row in columns),
        bounds=bounds,
        names=_names(outcomes),
    )


def _names(outcomes: Sequence[ItemOutcome]) -> tuple[str, ...]:
    """Of each cluster in the order of first outcomes: the hash of the keys of all its items, by which two runs pair."""
    keys: dict[str, list[str]] = {}
    for outcome in outcomes:
        keys.setdefault(outcome.cluster, []).append(outcome.item_key)
    return tuple(
        hashlib.sha256("\n".join([cluster, *sorted(items)]).encode()).hexdigest()[:NAME_CHARACTERS]
        for cluster, items in keys.items()
    )


def macro_clusters(outcomes: Sequence[ItemOutcome], stratum: Callable[[ItemOutcome], str]) -> Clusters:
    """Clusters of the score whose mean is the mean of the strata's means, whatever each one's number of items.

    Every item weighs N / (S * n_s): N items are scored, in S strata, n_s of them in its own. The values stay bounded,
    so that the mean is judged as any other: a bootstrap would call a sample without flips certain. Strata without a
    scored item are left out of the mean, and the bounds hold what all their items could weigh: few errored items may be
    a whole stratum, and at their worst they are to cost what a stratum counts.
    """
    scored = Counter(stratum(outcome) for outcome in outcomes if is_scored(outcome))
    weights = {name: scored.total() / (len(scored) * count) for name, count in scored.items()}
    lost = Counter(stratum(outcome) for outcome in outcomes if stratum(outcome) not in scored)
    weightiest = [len(outcomes) / (max(1, len(scored)) * count) for count in lost.values()]

    def weighted(outcome: ItemOutcome) -> Pair | None:
        pair = scores(outcome)
        weight = weights.get(stratum(outcome), 0.0)
        return None if pair is None else (weight * pair[0], weight * pair[1])

    return paired_clusters(outcomes, weighted, bounds=(0.0, max([*weights.values(), *weightiest], default=1.0)))


def counts_of(clusters: Clusters) -> Counts:
    """Units with and without a value."""
    scored, errored = sum(clusters.units), sum(clusters.errored)
    return Counts(total=scored + errored, scored=scored, errored=errored)


def flip_counts(outcomes: Iterable[ItemOutcome]) -> tuple[int, int]:
    """Items lost and gained (`ItemOutcome.flip`)."""
    flips = Counter(outcome.flip for outcome in outcomes)
    return flips["regression"], flips["improvement"]
