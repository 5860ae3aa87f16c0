"""The order in which a task's items are evaluated, in blocks that end in a look: at each stratum's share, or by margin.

`in_blocks` gives every stratum its own share of every block. `draws_by_margin` draws by what the reference's own margin
says of an item, since whether an answer can flip is largely known beforehand: a branch near the reference flips answers
between which the reference hardly chose. So clusters are put into strata by the least margin of the reference in them,
and every block holds a fixed number of each stratum, about as many as Neyman's allocation wants for what may flip there
(J. R. Statist. Soc. 97 (1934), 558-625); the strata lie where the sum of the roots of these rates is cut into equal
parts (Dalenius & Hodges, J. Amer. Statist. Assoc. 54 (1959), 88-101). A unit then counts its stratum's share of all
clusters over its share of the draws, so that a block's weighted mean has the mean of all items as its expectation,
wherever a loss lies. Nothing here looks at the branch.
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
    """The clusters of the keys in such an order: the i-th of n of its stratum at (i + u) / n, with u a seeded share."""
    placed = []
    for stratum, own in _by_stratum(members_of(strata, clusters), strata).items():
        offset = _uniform(f"{seed}\0stratum\0{stratum}")
        shuffled = sorted(own, key=lambda cluster: _uniform(f"{seed}\0cluster\0{cluster}"))
        placed += [((i + offset) / len(shuffled), cluster) for i, cluster in enumerate(shuffled)]
    return [cluster for _, cluster in sorted(placed)]


def members_of(strata: Mapping[K, str], clusters: Mapping[K, str]) -> dict[str, list[K]]:
    """The keys of each cluster, whatever their order was."""
    members: dict[str, list[K]] = {}
    for key in sorted(strata, key=str):
        members.setdefault(clusters[key], []).append(key)
    return members


def _by_stratum(members: Mapping[str, Sequence[K]], strata: Mapping[K, str]) -> dict[str, list[str]]:
    """Stratum -> its clusters; those that lie in the same several strata are a stratum of their own."""
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
"""Share of the answers that a branch is taken to change: somewhat more than near-lossless ones do (2 to 6 %). One that
changes fewer has verdicts a little later than it might; were less assumed, the draws of MMLU would end before enough
items for a look at them (`stats.LEAST_EXPECTED`) where the reference gets four in five right."""

NEAR_STRATA = 4
"""Strata of the clusters that may flip, beside one of all others; more of them gain nothing."""

MOST_WEIGHT = 1.6
"""What a unit counts at most: where hardly anything flips, a bet is limited by what the weightiest could lose."""

LEAST_CLUSTERS = 1_000
"""Of fewer clusters a block would hold none of some strata."""


@dataclass(frozen=True)
class Draws(Generic[K]):
    """Blocks of keys in the order of asking; up to block `last_bet` each stratum has its fixed number in every block.

    `weights` say what a unit of each key counts there, `expected_changes` how many of its answers were taken to change.
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
    """Blocks of about `block_items` keys; None where the clusters are too few, or their margins say nothing.

    `margins` (key -> nats) are the reference's, of the right choice over the best wrong one; None is taken for none at
    all. `strata` and `clusters` are those of `in_blocks`; within a margin's stratum each of them keeps its share.
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
    """How many clusters of each stratum a block draws.

    `stratum` [C] is that of each cluster. Of each stratum [H]: `drawn` clusters in every one of so many `blocks`, the
    `weights` of a unit, and the mean of the `rates` at which answers were taken to flip.
    """

    stratum: NDArray[np.int64]
    drawn: NDArray[np.int64]
    blocks: int
    weights: Array
    rates: Array

    @classmethod
    def of(cls, margins: Array, block_clusters: float) -> "Allocation | None":
        """From each cluster's least margin [C] in nats, at least 0; None where one stratum is all there is."""
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
        whole = float((counts / share).min())  # clusters in these shares until the first stratum has no more
        blocks = max(1, round(whole / block_clusters))
        drawn = np.maximum(1, np.floor(share * whole / blocks + 1e-9)).astype(np.int64)
        blocks = min(blocks, int((counts // drawn).min()))
        weights = (counts / counts.sum()) / (drawn / drawn.sum())
        return cls(stratum, drawn, blocks, weights, np.bincount(stratum, weights=rates) / counts)


def expected_rates(margins: Array) -> Array:
    """How often each answer is taken to flip: where normal noise exceeds its margin, so much that `ASSUMED_CHANGE` do.

    `margins` [C] in nats, at least 0. The scale of the noise is not known beforehand, so it is set by the share.
    """
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(ndtr(-margins / middle).mean()) < ASSUMED_CHANGE else (low, middle)
    rates: Array = ndtr(-margins / high)
    return rates


def margin_strata(rates: Array) -> NDArray[np.int64]:
    """The stratum [C] of each cluster: `NEAR_STRATA` of equal sums of roots, the most uncertain first, and the rest."""
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
    """The least allocation per cluster with which none counts more than `MOST_WEIGHT`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if np.maximum(roots, middle).mean() <= MOST_WEIGHT * middle else (middle, high)
    return high
