"""From item outcomes to clusters: sums of a value under branch and reference over texts that share a source."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from q36eval.records import Clusters, ItemOutcome, PlannedClusters, Schedule
from q36eval.stats import planned_clusters, planned_largest

Pair = tuple[float, float]
NAME_CHARACTERS = 12
"""Characters of a hash: among 14,000 clusters a collision occurs once in three million suites."""

Values = Callable[[ItemOutcome], Pair | None]
"""The branch's and the reference's value of one item; None if either is missing."""


@dataclass(frozen=True)
class PlannedItem:
    """A planned item, evaluated or not: `block` is its block within its group.

    `drawn` is set if its group's items are drawn by the reference's margin (`evals.blocks`), `units` for perplexities:
    its number of units, by the metric's name.
    """

    key: str
    group: str
    cluster: str
    stratum: str
    block: int
    drawn: "DrawnItem | None" = None
    units: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class DrawnItem:
    """The draw of an item: the weight of its cluster's units in the blocks up to `last_bet`, and the assumed number of
    changed answers."""

    weight: float
    expected_change: float
    last_bet: int


def scheduled(
    clusters: Clusters,
    outcomes: Iterable[ItemOutcome],
    planned: Sequence[PlannedItem],
    family_of: Callable[[PlannedItem], str] = lambda item: "",
    right: Mapping[str, bool] | None = None,
) -> Clusters:
    """The same clusters with their blocks and the plan, known before any answer of the branch.

    `clusters` are those of `outcomes`, in the order of their first ones; `family_of` returns the family of a planned
    item's cluster, `right` is whether the reference got its first items right. Unchanged if the plan is unknown, or if
    a cluster is in several blocks: then only one look may be taken.
    """
    blocks: dict[str, set[int]] = {}
    for item in planned:
        blocks.setdefault(item.cluster, set()).add(item.block)
    names = list(dict.fromkeys(outcome.cluster for outcome in outcomes))
    if not names or any(len(blocks.get(name, ())) != 1 for name in names):
        return clusters
    sizes = Counter(item.cluster for item in planned)
    one_of = {item.cluster: item for item in planned}
    drawn = {name: item.drawn for name, item in one_of.items() if item.drawn is not None}
    if drawn and len(drawn) < len(one_of):
        return clusters
    # bets are placed only on the draws, whose units have their stratum's weight
    weighted = {
        name: size * (drawn[name].weight if drawn else 1.0)
        for name, size in sizes.items()
        if not drawn or one_of[name].block <= drawn[name].last_bet
    }
    largest = planned_largest(list(weighted.values()))
    solved = None if right is None else _right_shares(planned, family_of, right)
    schedule = Schedule(
        largest=largest,
        blocks=tuple(one_of[name].block for name in names),
        planned=_by_family(dict(sizes), one_of, family_of, largest, solved),
        last_bet=next(iter(drawn.values())).last_bet if drawn else None,
        weights=tuple(drawn[name].weight for name in names) if drawn else None,
        first=_by_family(weighted, one_of, family_of, largest) if drawn else None,
        expected_changes=tuple(drawn[name].expected_change for name in names) if drawn else None,
    )
    return clusters.model_copy(update={"schedule": schedule})


def _by_family(
    sizes: Mapping[str, float],
    one_of: Mapping[str, PlannedItem],
    family_of: Callable[[PlannedItem], str],
    largest: float,
    solved: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, PlannedClusters]:
    """The planned clusters of each family; `one_of` has an item of each, `solved` is, per family, the number of items
    that the reference gets right and its number of answers."""
    by_family: dict[str, list[str]] = {}
    for name in sizes:
        by_family.setdefault(family_of(one_of[name]), []).append(name)
    planned = {}
    for family, names in sorted(by_family.items()):
        plan = planned_clusters([sizes[name] for name in names], largest)
        right = None
        if solved is not None and family in solved:
            count, of = solved[family]
            right = plan.units * count / of  # exact if all were evaluated
        planned[family] = plan.model_copy(update={"right": right})
    return planned


def _right_shares(
    planned: Iterable[PlannedItem], family_of: Callable[[PlannedItem], str], right: Mapping[str, bool]
) -> dict[str, tuple[int, int]]:
    """For each family, the number of items that the reference gets right, and its number of answers."""
    shares: dict[str, tuple[int, int]] = {}
    for item in planned:
        if item.key in right:
            count, of = shares.get(family_of(item), (0, 0))
            shares[family_of(item)] = count + right[item.key], of + 1
    return shares


def estimate_weights(outcomes: Iterable[ItemOutcome], planned: Sequence[PlannedItem]) -> dict[str, float] | None:
    """The weight of a unit of each cluster in a mean over those evaluated so far; None if all are equal.

    Strata drawn at unequal shares are reweighted: each by its share of all planned clusters over its share of the
    evaluated ones. Once all are evaluated, all weights are equal.
    """
    weight_of = {item.cluster: item.drawn.weight for item in planned if item.drawn is not None}
    evaluated = {outcome.cluster for outcome in outcomes} & set(weight_of)
    if not evaluated or len(evaluated) == len(weight_of):
        return None
    of_all, of_evaluated = Counter(weight_of.values()), Counter(weight_of[name] for name in evaluated)
    scale = len(evaluated) / len(weight_of)
    return {name: scale * of_all[weight_of[name]] / of_evaluated[weight_of[name]] for name in evaluated}


def is_scored(outcome: ItemOutcome) -> bool:
    """Whether both deployments answered; an errored item is never compared, and never wrong."""
    return outcome.branch.score is not None and outcome.reference.score is not None


def scores(outcome: ItemOutcome) -> Pair | None:
    """Both scores, from 0 to 1."""
    branch, reference = outcome.branch.score, outcome.reference.score
    return None if branch is None or reference is None else (branch, reference)


def details(name: str) -> Values:
    """One figure from both answers' details."""

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
    weights: Mapping[str, float] | None = None,
) -> Clusters:
    """Sums of `units` and `values` per cluster, with the units of items without a value counted separately.

    A value is the item's sum over its units; `bounds` are those of a unit's value. Clusters are in the order of their
    first outcome, named by their items; `weights` are the weights of a unit by cluster (`estimate_weights`).
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
        weights=None if weights is None else tuple(weights.get(name, 1.0) for name in sums),
    )


def _names(outcomes: Sequence[ItemOutcome]) -> tuple[str, ...]:
    """For each cluster in the order of first outcomes: the hash of the keys of all its items, which pairs two runs."""
    keys: dict[str, list[str]] = {}
    for outcome in outcomes:
        keys.setdefault(outcome.cluster, []).append(outcome.item_key)
    return tuple(called(cluster, items) for cluster, items in keys.items())


def called(cluster: str, keys: Iterable[str]) -> str:
    """The name of a cluster of items with these keys, identical in every run."""
    return hashlib.sha256("\n".join([cluster, *sorted(keys)]).encode()).hexdigest()[:NAME_CHARACTERS]


def flip_counts(outcomes: Iterable[ItemOutcome]) -> tuple[int, int]:
    """Items lost and gained (`ItemOutcome.flip`)."""
    flips = Counter(outcome.flip for outcome in outcomes)
    return flips["regression"], flips["improvement"]
