"""Betting tests for bounded means at a fixed sample size.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686), section 4: under
H0 every factor 1 + lambda * (margin - z) has expectation at most 1, so wealth is an e-value and 1 / wealth a p-value.
Here a mixture over constant bets is used, so the final wealth does not depend on the order of the items.
"""

import numpy as np

from q36eval.stats._contrast import Array, Contrast

N_BETS = 64

EAGER = 0.5
"""Beta(1, 1/2) prior over the bet as a share of the maximal one: leans to the maximum, the best bet when nothing went
wrong (the usual case near losslessness)."""

EVEN = 1.0
"""Uniform prior, for evidence that something did go wrong: damage comes with noise, which ruins the largest bets."""

BISECTION_STEPS = 50


def bets(shape: float) -> Array:
    """Shares of the maximal bet, ascending in (0, 1), of equal prior weight: the mid-quantiles of Beta(1, shape)."""
    quantiles = (np.arange(N_BETS, dtype=np.float64) + 0.5) / N_BETS
    return 1.0 - (1.0 - quantiles) ** (1.0 / shape)


def p_mean_at_least(contrast: Contrast, margin: float, shape: float = EAGER) -> float:
    """p-value of H0: E[sum z] >= margin * E[units]; errored units count as `high`, their worst.

    Small when the mean is convincingly below `margin`. A margin beyond the range of z is refuted by definition (0.0).
    """
    totals = contrast.units + contrast.errored
    if totals.size == 0 or not contrast.finite:
        return 1.0
    gains = margin * totals - (contrast.sums + contrast.errored * contrast.high)
    largest_loss = (contrast.high - margin) * float(totals.max())
    if largest_loss < 0:
        return 0.0
    if largest_loss == 0:
        return 0.0 if bool((gains > 0).any()) else 1.0
    # -1 is the worst a cluster can do; the clip only removes rounding beyond it
    scaled = np.maximum(gains / largest_loss, -1.0)
    log_wealth = np.log1p(np.outer(bets(shape), scaled)).sum(axis=1) - np.log(N_BETS)
    # wealth can overflow to infinity (p = 0) or vanish (p = 1)
    return float(np.exp(-max(0.0, float(np.logaddexp.reduce(log_wealth)))))


def p_mean_at_most(contrast: Contrast, margin: float, shape: float = EAGER) -> float:
    """p-value of H0: E[sum z] <= margin * E[units]; errored units count as `low`. Small when the mean is above."""
    return p_mean_at_least(contrast.negated(), -margin, shape)


def upper_bound(contrast: Contrast, alpha: float, shape: float = EAGER) -> float:
    """One-sided upper confidence bound on the mean at 1 - alpha, by inverting `p_mean_at_least`.

    Every factor of the wealth rises with the margin, so the p-value falls and bisection is exact.
    """
    low, high = contrast.low, contrast.high
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if p_mean_at_least(contrast, middle, shape) <= alpha:
            high = middle
        else:
            low = middle
    return high


def lower_bound(contrast: Contrast, alpha: float, shape: float = EAGER) -> float:
    """One-sided lower confidence bound on the mean at 1 - alpha."""
    return -upper_bound(contrast.negated(), alpha, shape)
