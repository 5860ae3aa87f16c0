"""How many neighbours count as one: pieces of one source that nobody declared are alike, and none is independent.

The correlation of neighbours' ranks (Wald and Wolfowitz, Ann. Math. Statist. 14 (1943), 378-388) shows it, of single
ones or of blocks of them, which hold what a weak dependence adds up to. What is not next to each other is beyond it.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from q36eval.stats._contrast import Array

ALIKE = 2.878
"""Standard normal units from which on neighbours are alike: by chance once in 500 times, at each size of block."""

LEAST_BLOCKS = 16
"""With fewer blocks the correlation of neighbours says little."""

TIMES = 4
"""Blocks are so many times the largest ones that are still alike: twice as large ones have just ceased to show it."""


def block_size(groups: Sequence[Sequence[float]]) -> int:
    """How many neighbours count as one, of groups of values in their order; 1 where neighbours are not alike."""
    size, found = 1, 1
    while True:
        blocks = [_means(np.asarray(values, dtype=np.float64), size) for values in groups]
        if sum(map(len, blocks)) < LEAST_BLOCKS:
            return found
        found = TIMES * size if _alikeness(blocks) > ALIKE else found
        size *= 2


def block_starts(count: int, size: int) -> list[int]:
    """The first of the block of each of `count` neighbours; the last block takes what is left over."""
    return [size * min(place // size, max(1, count // size) - 1) for place in range(count)]


def _means(values: Array, size: int) -> Array:
    starts, lengths = np.unique(block_starts(len(values), size), return_counts=True)
    means: Array = np.add.reduceat(values, starts) / lengths
    return means


def _alikeness(groups: Sequence[Array]) -> float:
    """The correlation of neighbours' ranks within groups, in its standard deviations were they exchangeable."""
    products, variance = 0.0, 0
    for values in groups:
        ranks = rankdata(values) - (len(values) + 1) / 2
        if len(values) >= TIMES and ranks.any():
            products += float(ranks[:-1] @ ranks[1:]) / float(ranks.var()) + 1.0
            variance += len(values) - 2
    return products / variance**0.5 if variance else 0.0
