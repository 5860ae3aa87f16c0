"""The order in which a task's items are evaluated, in blocks with a look at the end: by proportions, or by margin.

`in_blocks` gives every stratum its own share of every block. `draws_by_margin` draws by the reference's own margin on
an item, since it largely predicts whether an answer can flip: a branch near the reference flips answers on which the
reference was almost undecided. So clusters are put into strata by the reference's smallest margin in them, and every
block holds a fixed number of each stratum, close to Neyman's allocation for the expected flips (J. R. Statist. Soc. 97
(1934), 558-625); the strata cut the sum of the roots of these rates into equal parts (Dalenius & Hodges, J. Amer.
Statist. Assoc. 54 (1959), 88-101). The weight of a unit is its stratum's share of all clusters over its share of the
draws, so that a block's weighted mean has the mean of all items as its expectation, wherever a loss occurs. Nothing
here depends on the branch.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

K = TypeVar("K", bound=Hashable)


def in_blocks(strata: Mapping[K, str], clusters: Mapping[K, str], block_items: int, seed: str) -> list[list[K]]:
    """The keys of `strata` (key -> stratum) in blocks of about `block_items`, none smaller than half of that.

    Keys of one cluster (`clusters`: key -> cluster) stay together: a look must never see half of one. Every prefix of
    the order holds each stratum in proportion to its size (rounded), so that a block's mean has the mean of the whole
    population as its expectation. The order depends on the seed and the names alone, never on the order of the keys.

    Raises:
        ValueError: `block_items` is not positive.
    """
    if block_items < 1:
        raise ValueError(f"a block holds at least one item, not {block_items}")
    members = members_of(strata, clusters)
    order = interleaved(strata, clusters, seed)
    blocks: list[list[K]] = [[]]
    for cluster in order:
        if len(blocks[-1]) >= block_items:
            blocks.append([])
        blocks[-1] += members[cluster]
    if len(blocks) > 1 and len(blocks[-1]) < block_items / 2:
        last = blocks.pop()
        blocks[-1] += last
    return blocks if blocks[0] else []


def interleaved(strata: Mapping[K, str], clusters: Mapping[K, str], seed: str) -> list[str]:
    """The clusters of the keys in such an order: the i-th of n of its stratum at (i + u) / n, u seeded uniform."""
    placed = []
    for stratum, own in _by_stratum(members_of(strata, clusters), strata).items():
        offset = _uniform(f"{seed}\0stratum\0{stratum}")
        shuffled = sorted(own, key=lambda cluster: _uniform(f"{seed}\0cluster\0{cluster}"))
        placed += [((i + offset) / len(shuffled), cluster) for i, cluster in enumerate(shuffled)]
    return [cluster for _, cluster in sorted(placed)]


def members_of(strata: Mapping[K, str], clusters: Mapping[K, str]) -> dict[str, list[K]]:
    """The keys of each cluster, independent of their order."""
    members: dict[str, list[K]] = {}
    for key in sorted(strata, key=str):
        members.setdefault(clusters[key], []).append(key)
    return members


def _by_stratum(members: Mapping[str, Sequence[K]], strata: Mapping[K, str]) -> dict[str, list[str]]:
    """Stratum -> its clusters; clusters that belong to the same several strata form a separate stratum."""
    by_stratum: dict[str, list[str]] = {}
    for cluster, keys in members.items():
        names = sorted({strata[key] for key in keys})
        by_stratum.setdefault("+".join(names), []).append(cluster)
    return by_stratum


def _uniform(text: str) -> float:
    """In [0, 1), from a hash: the same on every machine and in every version of Python."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


Array = NDArray[np.float64]

ASSUMED_CHANGE = 0.08
"""The assumed share of answers that a branch changes: slightly more than near-lossless ones do (2 to 6 %). A branch
that changes fewer gets its verdict a little later; with a smaller share, the draws of MMLU would end before enough
items for a look (`stats.LEAST_EXPECTED`) if the reference gets four in five right."""

NEAR_STRATA = 4
"""The number of strata of clusters that may flip, plus one of all others; more of them gain nothing."""

MOST_WEIGHT = 1.6
"""The maximum weight of a unit: if hardly anything flips, a bet is limited by the largest weight's possible loss."""

LEAST_CLUSTERS = 1_000
"""With fewer clusters a block would lack some strata."""


@dataclass(frozen=True)
class Draws(Generic[K]):
    """Blocks of keys in evaluation order; up to block `last_bet` each stratum has its fixed number in every block.

    `weights` are the weights of a unit of each key there, `expected_changes` the assumed number of changed answers.
    """

    blocks: list[list[K]]
    last_bet: int
    weights: Mapping[K, float]
    expected_changes: Mapping[K, float]


def draws_by_margin(
    margins: Mapping[K, float | None],
    strata: Mapping[K, str],
    clusters: Mapping[K, str],
    block_items: int,
    seed: str,
) -> Draws[K] | None:
    """Blocks of about `block_items` keys; None if the clusters are too few, or their margins do not differ.

    `margins` (key -> nats) are the reference's, of the right choice over the best wrong one; None counts as zero.
    `strata` and `clusters` are those of `in_blocks`; within a margin's stratum each of them keeps its share.
    """
    members = members_of(strata, clusters)
    names = list(members)
    if len(names) < LEAST_CLUSTERS:
        return None
    least = np.array([min(abs(margins[key] or 0.0) for key in members[name]) for name in names])
    plan = Allocation.of(least, block_items * len(names) / len(strata))
    if plan is None:
        return None
    stratum, drawn, blocks = plan.stratum, plan.drawn, plan.blocks
    orders = []
    for number in range(len(drawn)):
        own = [name for name, mine in zip(names, stratum, strict=True) if mine == number]
        of_margin = {key: strata[key] for name in own for key in members[name]}
        orders.append(interleaved(of_margin, clusters, f"{seed}/margin {number}"))
    first = [
        [name for order, count in zip(orders, drawn, strict=True) for name in order[b * count : (b + 1) * count]]
        for b in range(blocks)
    ]
    begun = {name for block in first for name in block}
    rest = {key: strata[key] for name in names if name not in begun for key in members[name]}
    last = in_blocks(rest, clusters, block_items, f"{seed}/rest") if rest else []
    stratum_of = dict(zip(names, stratum, strict=True))
    return Draws(
        blocks=[[key for name in block for key in members[name]] for block in first] + last,
        last_bet=blocks - 1,
        weights={key: float(plan.weights[stratum_of[clusters[key]]]) for key in strata},
        expected_changes={key: float(plan.rates[stratum_of[clusters[key]]]) for key in strata},
    )


@dataclass(frozen=True)
class Allocation:
    """The number of clusters of each stratum in a block.

    `stratum` [C] is that of each cluster. For each stratum [H]: `drawn` clusters in each of `blocks`, the `weights` of
    a unit, and the mean of the `rates` of assumed flips.
    """

    stratum: NDArray[np.int64]
    drawn: NDArray[np.int64]
    blocks: int
    weights: Array
    rates: Array

    @classmethod
    def of(cls, margins: Array, block_clusters: float) -> "Allocation | None":
        """From each cluster's smallest margin [C] in nats, at least 0; None if only one stratum exists."""
        rates = expected_rates(margins)
        if not np.ptp(rates):
            return None
        stratum = margin_strata(rates)
        counts = np.bincount(stratum)
        roots = np.sqrt(rates)
        wanted = np.bincount(stratum, weights=np.maximum(roots, _floor(roots)))
        if len(counts) < 2:
            return None
        share = wanted / wanted.sum()
        whole = float((counts / share).min())  # clusters in these shares until the first stratum is exhausted
        blocks = max(1, round(whole / block_clusters))
        drawn = np.maximum(1, np.floor(share * whole / blocks + 1e-9)).astype(np.int64)
        blocks = min(blocks, int((counts // drawn).min()))
        weights = (counts / counts.sum()) / (drawn / drawn.sum())
        return cls(stratum, drawn, blocks, weights, np.bincount(stratum, weights=rates) / counts)


def expected_rates(margins: Array) -> Array:
    """The assumed flip rate of each answer: normal noise exceeds its margin, scaled so that `ASSUMED_CHANGE` flip.

    `margins` [C] in nats, at least 0. The scale of the noise is unknown beforehand, so the share determines it.
    """
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(ndtr(-margins / middle).mean()) < ASSUMED_CHANGE else (low, middle)
    rates: Array = ndtr(-margins / high)
    return rates


def margin_strata(rates: Array) -> NDArray[np.int64]:
    """The stratum [C] of each cluster: `NEAR_STRATA` with equal sums of roots, most uncertain first, and the rest."""
    roots = np.sqrt(rates)
    floor = _floor(roots)
    order = np.argsort(-roots, kind="stable")
    near = order[roots[order] > floor]
    cut = np.cumsum(roots[near])
    stratum = np.full(len(rates), NEAR_STRATA, dtype=np.int64)
    if near.size:
        stratum[near] = np.minimum(cut / cut[-1] * NEAR_STRATA, NEAR_STRATA - 1).astype(np.int64)
    _, dense = np.unique(stratum, return_inverse=True)
    return dense.reshape(-1).astype(np.int64)


def _floor(roots: Array) -> float:
    """The smallest allocation per cluster for which no weight exceeds `MOST_WEIGHT`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if np.maximum(roots, middle).mean() <= MOST_WEIGHT * middle else (middle, high)
    return high
