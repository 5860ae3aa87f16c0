"""Betting tests for bounded means, at a fixed sample size or under continuous looking.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686), section 4: under
H0 every factor 1 + lambda * (margin - z) has expectation at most 1, so wealth is an e-value and 1 / wealth a p-value.
By Ville's inequality the chance that it ever reaches 1 / alpha is at most alpha, so where no bet depends on the answer
it is placed on, one may look after every block and stop.

Constant bets are mixed, so their wealth does not depend on the order of the items. Where the clusters say in which
block each was asked, most of the stake follows bets fixed block by block (`_blocks`): a mean of martingales is one.
"""

import numpy as np

from q36eval.stats._contrast import Array, Contrast

N_BETS = 64

EAGER = 0.5
"""Beta(1, 1/2) prior over the bet as a share of the maximal one: leans to the maximum, the best bet when nothing went
wrong (the usual case near losslessness)."""

EVEN = 1.0
"""Uniform prior, for evidence that something did go wrong: damage comes with noise, which ruins the largest bets."""

CONSTANT_STAKE = 0.05
"""Share of the stake on constant bets where others are planned block by block."""

BISECTION_STEPS = 50


def bets(shape: float) -> Array:
    """Shares of the maximal bet, ascending in (0, 1), of equal prior weight: the mid-quantiles of Beta(1, shape)."""
    quantiles = (np.arange(N_BETS, dtype=np.float64) + 0.5) / N_BETS
    return 1.0 - (1.0 - quantiles) ** (1.0 / shape)


def p_mean_at_least(contrast: Contrast, margin: float, shape: float = EAGER, planned: Array | None = None) -> float:
    """p-value of H0: E[sum z] >= margin * E[units]; errored units count as `high`, their worst.

    Small when the mean is convincingly below `margin`. A margin beyond the range of z is refuted by definition (0.0).
    `planned` [K, R] are bets per unit of gain that were fixed block by block (`_blocks.block_bets`), which then share
    the stake with the constant ones.

    Raises:
        ValueError: a cluster larger than the largest that was planned for.
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
    # -1 is the worst a cluster can do; the clip only removes rounding beyond it
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
    """Log wealth of both kinds of bets together, from the log wealth of each."""
    together: Array = np.logaddexp(np.log(CONSTANT_STAKE) + constant, np.log1p(-CONSTANT_STAKE) + by_block)
    return together


def tamed(shares: Array) -> Array:
    """Shares of the maximal bet from gain / flip rate = r, which is the best one only where it is small.

    With flips of rate f, half of them each way, a gain g and a share s, log wealth grows by g s + f/2 log(1 - s^2) per
    item, most for s = (sqrt(1 + 4 r^2) - 1) / (2 r) < 1. It rises with r, and s / r falls, so that a p-value still
    falls with its margin.
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
