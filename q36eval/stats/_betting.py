"""Betting tests for bounded means at a fixed sample size.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686), section 4: under
H0 every factor 1 + lambda * (margin - z) has expectation at most 1, so wealth is an e-value and 1 / wealth a p-value.
Here a mixture over constant bets is used, so the final wealth does not depend on the order of the items.
"""

import numpy as np

from q36eval.stats._contrast import Array, Contrast

GRID_RATIO = 2.0**-0.5
"""Neighbouring bets differ by this ratio: the best bet is missed by 19 % at most, costing under 4 % of its growth."""

MAXIMAL_BET_WEIGHT = 0.5
"""Prior weight of the maximal bet, the best one when nothing at all went wrong (the usual case near losslessness)."""

BISECTION_STEPS = 60


def bet_grid(n_clusters: int, maximal_bet_weight: float) -> tuple[Array, Array]:
    """Relative bets in (0, 1] and their prior weights, chosen before any value is seen.

    The best bet is mean / variance; where a mean reaches significance at 97.5 % with n clusters and a standard
    deviation no larger than the largest loss, that is at least sqrt(2 log(40) / n), so no smaller one is laid.
    """
    smallest = float(np.clip(np.sqrt(2 * np.log(40) / max(n_clusters, 1)), 0.01, 0.5))
    steps = int(np.ceil(np.log(smallest) / np.log(GRID_RATIO)))
    bets = GRID_RATIO ** np.arange(steps + 1, dtype=np.float64)
    weights = np.full(bets.shape, (1.0 - maximal_bet_weight) / steps)
    weights[0] = maximal_bet_weight
    return bets, weights


def p_mean_at_least(contrast: Contrast, margin: float, maximal_bet_weight: float = MAXIMAL_BET_WEIGHT) -> float:
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
    bets, weights = bet_grid(totals.size, maximal_bet_weight)
    # -1 is the worst a cluster can do; the clip only removes rounding beyond it
    scaled = np.maximum(gains / largest_loss, -1.0)
    with np.errstate(divide="ignore"):
        log_wealth = np.log1p(np.outer(bets, scaled)).sum(axis=1) + np.log(weights)
    # wealth can overflow to infinity (p = 0) or vanish (p = 1)
    return float(np.exp(-max(0.0, float(np.logaddexp.reduce(log_wealth)))))


def p_mean_at_most(contrast: Contrast, margin: float, maximal_bet_weight: float = MAXIMAL_BET_WEIGHT) -> float:
    """p-value of H0: E[sum z] <= margin * E[units]; errored units count as `low`. Small when the mean is above."""
    return p_mean_at_least(contrast.negated(), -margin, maximal_bet_weight)


def upper_bound(contrast: Contrast, alpha: float, maximal_bet_weight: float = MAXIMAL_BET_WEIGHT) -> float:
    """One-sided upper confidence bound on the mean at 1 - alpha, by inverting `p_mean_at_least`.

    Every factor of the wealth rises with the margin, so the p-value falls and bisection is exact.
    """
    low, high = contrast.low, contrast.high
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if p_mean_at_least(contrast, middle, maximal_bet_weight) <= alpha:
            high = middle
        else:
            low = middle
    return high


def lower_bound(contrast: Contrast, alpha: float, maximal_bet_weight: float = MAXIMAL_BET_WEIGHT) -> float:
    """One-sided lower confidence bound on the mean at 1 - alpha."""
    return -upper_bound(contrast.negated(), alpha, maximal_bet_weight)
