"""Betting tests for bounded means, at a fixed sample size or under continuous looking.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686), section 4: under H0
every factor 1 + lambda * (margin - z) has expectation at most 1, so wealth is an e-value and 1 / wealth a p-value. By
Ville's inequality the chance that it ever reaches 1 / alpha is at most alpha, so if no bet depends on the answer it is
placed on, one may look after every block and stop.

Constant bets are mixed, so their wealth does not depend on the order of the items. If the clusters record their blocks,
most of the stake follows bets fixed block by block: a mean of martingales is a martingale.

The best bet against H0: mean loss >= margin is near E[gain] / E[gain^2] (the same paper's approximate growth-rate
adaptive bets estimate both). The gain of a branch without loss on a cluster is known, the margin; the rate at which its
answers change either way is unknown, and determines the number of items needed: about 2 log(1/alpha) * flip rate /
margin^2. So `block_bets` learns that rate from the blocks before, which costs nothing, while a mixture over constant
bets pays for not knowing it (benchmarks/README.md has both). Bets within a block are equal, so the order inside it has
no effect; and if strata lose unequally, the product over a block with each stratum's share has expectation at most 1,
by the inequality of the arithmetic and geometric mean.
"""

from dataclasses import dataclass

import numpy as np

from q36eval.stats._contrast import Array, Columns, Contrast

N_BETS = 64

EAGER = 0.5
"""Beta(1, 1/2) prior over the bet as a share of the maximal one: favours the maximum, the best bet when nothing went
wrong (the usual case near losslessness)."""

EVEN = 1.0
"""Uniform prior, for proving damage: damage comes with noise, which ruins the largest bets."""

CONSTANT_STAKE = 0.05
"""Share of the stake on constant bets if others are planned block by block."""

BISECTION_STEPS = 50


def bets(shape: float) -> Array:
    """Shares of the maximal bet, ascending in (0, 1), of equal prior weight: the mid-quantiles of Beta(1, shape)."""
    quantiles = (np.arange(N_BETS, dtype=np.float64) + 0.5) / N_BETS
    return 1.0 - (1.0 - quantiles) ** (1.0 / shape)


def p_mean_at_least(contrast: Contrast, margin: float, shape: float = EAGER, planned: Array | None = None) -> float:
    """p-value of H0: E[sum z] >= margin * E[units]; errored units count as `high`, their worst.

    Small when the mean is significantly below `margin`. A margin beyond the range of z is refuted by definition (0.0).
    `planned` [K, R] are bets per unit of gain that were fixed block by block (`block_bets`), which then share the stake
    with the constant ones.

    Raises:
        ValueError: a cluster is larger than the planned maximum.
    """
    totals = contrast.units + contrast.errored
    if totals.size == 0 or not contrast.finite:
        return 1.0
    if contrast.largest is not None and totals.max() > contrast.largest:
        raise ValueError("sizes are capped before a bet is placed on them")
    gains = margin * totals - (contrast.sums + contrast.errored * contrast.high)
    largest_loss = (contrast.high - margin) * (contrast.largest or float(totals.max()))
    if largest_loss < 0:
        return 0.0
    if largest_loss == 0:
        return 0.0 if bool((gains > 0).any()) else 1.0
    # a cluster's return is at least -1; the clip only removes rounding errors
    scaled = np.maximum(gains / largest_loss, -1.0)
    log_wealth = _log_wealth(np.outer(bets(shape), scaled), contrast.counts)
    if planned is not None:
        by_block = _log_wealth(tamed(planned * largest_loss) * scaled, contrast.counts)
        log_wealth = float(shared_stake(log_wealth, by_block))
    # wealth can overflow to infinity (p = 0) or vanish (p = 1)
    return float(np.exp(-max(0.0, log_wealth)))


def _log_wealth(returns: Array, counts: Array) -> float:
    """Log of the mean over K bets of the product over clusters of 1 + `returns` [K, R]; row r counts `counts[r]`."""
    return float(np.logaddexp.reduce(np.log1p(returns) @ counts)) - float(np.log(len(returns)))


def shared_stake(constant: Array | float, by_block: Array | float) -> Array:
    """Log wealth of both kinds of bets together, given the log wealth of each."""
    together: Array = np.logaddexp(np.log(CONSTANT_STAKE) + constant, np.log1p(-CONSTANT_STAKE) + by_block)
    return together


def tamed(shares: Array) -> Array:
    """Shares of the maximal bet from r = gain / flip rate, which itself is the best share only if small.

    With flips of rate f, half of them each way, a gain g and a share s, log wealth grows by g s + f/2 log(1 - s^2) per
    item, with its maximum at s = (sqrt(1 + 4 r^2) - 1) / (2 r) < 1. It rises with r, and s / r falls, so a p-value
    still falls with its margin.
    """
    return 2.0 * shares / (np.sqrt(1.0 + 4.0 * shares**2) + 1.0)


def p_mean_at_most(contrast: Contrast, margin: float, shape: float = EAGER, planned: Array | None = None) -> float:
    """p-value of H0: E[sum z] <= margin * E[units]; errored units count as `low`. Small when the mean is above."""
    return p_mean_at_least(contrast.negated(), -margin, shape, planned)


def upper_bound(contrast: Contrast, alpha: float, shape: float = EAGER, planned: Array | None = None) -> float:
    """One-sided upper confidence bound on the mean at 1 - alpha, by inverting `p_mean_at_least`.

    Every factor of the wealth rises with the margin, so the p-value falls and bisection is exact.
    """
    low, high = contrast.low, contrast.high
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if p_mean_at_least(contrast, middle, shape, planned) <= alpha:
            high = middle
        else:
            low = middle
    return high


def lower_bound(contrast: Contrast, alpha: float, shape: float = EAGER, planned: Array | None = None) -> float:
    """One-sided lower confidence bound on the mean at 1 - alpha."""
    return -upper_bound(contrast.negated(), alpha, shape, planned)


PRIOR_CHANGE = 0.05
"""Assumed changed answers per item before any answer: rather too many, because too large a bet is lost."""

PRIOR_CLUSTERS = 150.0
"""The weight of that assumption, in clusters."""

PRIOR_EDGE_CLUSTERS = 20.0
"""The weight in clusters of the assumption that the reference has all items right, which sets a recovery's gain."""

PASS_MULTIPLES = np.array([0.9, 1.0])
"""Multiples of the best bet for a branch without loss; the smaller one suits a small loss."""

FAIL_MULTIPLES = np.array([0.5, 1.0, 2.0])
"""k times this bet is the best one against a mean loss <= margin if the branch lost 1 + k margins."""


@dataclass(frozen=True)
class Edge:
    """The gain of a branch without loss: `rows` [R] per row of clusters, and at most `per_unit`."""

    rows: Array
    per_unit: float


@dataclass(frozen=True)
class BlockTotals:
    """Sums over the clusters of each block, [..., B] in the order of evaluation, each cluster weighted by size.

    `clusters` counts them, `sizes` are their units, `squared_changes` those of branch - reference, `expected_changes`
    the assumption before any answer, and `edges` the gains of a branch without loss.
    """

    clusters: Array
    sizes: Array
    expected_changes: Array
    squared_changes: Array
    edges: Array

    def best_bets(self, edge_per_unit: float, value_range: float) -> Array:
        """E[gain] / E[gain^2] [..., B] as known before each block: with the block's own sizes, without its answers."""
        clusters, sizes, expected = (np.cumsum(c, axis=-1) for c in (self.clusters, self.sizes, self.expected_changes))
        earlier = clusters - self.clusters
        changes = np.cumsum(self.squared_changes, axis=-1) - self.squared_changes
        edges = np.cumsum(self.edges, axis=-1) - self.edges
        prior_change = PRIOR_CLUSTERS * value_range**2 * expected / clusters
        prior_edge = PRIOR_EDGE_CLUSTERS * edge_per_unit * sizes / clusters
        change = (prior_change + changes) / (PRIOR_CLUSTERS + earlier)
        return np.maximum((prior_edge + edges) / (PRIOR_EDGE_CLUSTERS + earlier) / change, 0.0)


def block_bets(columns: Columns, edge: Edge, multiples: Array) -> Array | None:
    """Bets [K, R] per unit of gain for K multiples; None without a schedule or without a reference.

    Also None if a branch without loss gains nothing: the best bet is then zero and would only idle.
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
