"""Bets for a test that may stop after every block: fixed for each block by the blocks before it.

The best bet against H0: mean loss >= margin is near E[gain] / E[gain^2] (Waudby-Smith & Ramdas, arXiv 2010.09686, whose
approximate growth-rate adaptive bets estimate both). What a branch without loss would gain on a cluster is known, the
margin; how often its answers change either way is not, and decides how many items are needed: about
2 log(1/alpha) * flip rate / margin^2. So that rate is learnt from the blocks before, which costs nothing, while a
mixture over constant bets pays for not knowing it (benchmarks/README.md has both).

Bets within a block are equal, so the order inside it is of no matter; and where strata lose unequally, the product over
a block with each stratum's share has expectation at most 1, by the inequality of the arithmetic and geometric mean.
"""

from dataclasses import dataclass

import numpy as np

from q36eval.stats._contrast import Array, Columns

PRIOR_CHANGE = 0.05
"""Changed answers per item that are assumed before any was seen: rather too many, for too large a bet is lost."""

PRIOR_CLUSTERS = 150.0
"""How many clusters that assumption weighs."""

PRIOR_EDGE_CLUSTERS = 20.0
"""How many clusters the assumption weighs that the reference has all items right, which sets the gain of a recovery."""

PASS_MULTIPLES = np.array([0.9, 1.0])
"""Of the best bet for a branch without loss; the smaller for one that lost a little."""

FAIL_MULTIPLES = np.array([0.5, 1.0, 2.0])
"""The best bet against a mean loss <= margin is k times this one where the branch lost 1 + k margins."""


@dataclass(frozen=True)
class Edge:
    """What a branch without loss gains: `rows` [R] of each row's clusters, and `per_unit` at most."""

    rows: Array
    per_unit: float


@dataclass(frozen=True)
class BlockTotals:
    """Sums over the clusters of each block, [..., B] in the order of asking, each cluster's columns weighted by size.

    `clusters` counts them, `sizes` are their units, `squared_changes` of branch - reference, `expected_changes` what
    was assumed of those before any answer, and `edges` what a branch without loss gains.
    """

    clusters: Array
    sizes: Array
    expected_changes: Array
    squared_changes: Array
    edges: Array

    def best_bets(self, edge_per_unit: float, value_range: float) -> Array:
        """E[gain] / E[gain^2] [..., B] as known before each block: sizes with its own, answers without."""
        clusters, sizes, expected = (np.cumsum(c, axis=-1) for c in (self.clusters, self.sizes, self.expected_changes))
        asked = clusters - self.clusters
        changes = np.cumsum(self.squared_changes, axis=-1) - self.squared_changes
        edges = np.cumsum(self.edges, axis=-1) - self.edges
        prior_change = PRIOR_CLUSTERS * value_range**2 * expected / clusters
        prior_edge = PRIOR_EDGE_CLUSTERS * edge_per_unit * sizes / clusters
        change = (prior_change + changes) / (PRIOR_CLUSTERS + asked)
        return np.maximum((prior_edge + edges) / (PRIOR_EDGE_CLUSTERS + asked) / change, 0.0)


def block_bets(columns: Columns, edge: Edge, multiples: Array) -> Array | None:
    """Bets [K, R] per unit of gain for K multiples; None without a schedule or a reference to differ from.

    None too where a branch without loss gains nothing: the best bet is then none, and would only idle.
    """
    if columns.largest is None or columns.reference is None or columns.counts.size == 0 or columns.bounds is None:
        return None
    if edge.per_unit <= 0.0:
        return None
    block = np.unique(columns.blocks, return_inverse=True)[1]
    sizes = columns.weights * (columns.units + columns.errored)
    changes = columns.weights * (columns.branch - columns.reference)
    expected = PRIOR_CHANGE if columns.expected_changes is None else columns.expected_changes
    rows = (np.ones_like(sizes), sizes, expected * sizes**2, changes**2, columns.weights * edge.rows)
    totals = BlockTotals(*(np.bincount(block, weights=columns.counts * row).astype(np.float64) for row in rows))
    best = totals.best_bets(edge.per_unit, columns.bounds[1] - columns.bounds[0])
    return np.outer(multiples, best[block])
