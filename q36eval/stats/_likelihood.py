"""The empirical-likelihood test of a mean: one look at a planned end, with more power than betting.

The best constant bet in hindsight has the wealth max over lambda of sum log(1 + lambda * gain), which is Owen's
empirical log likelihood ratio (Biometrika 75 (1988), 237-249). Its signed root, sqrt(2 * log wealth), is standard
normal in large samples. A z-test of rare losses errs over 3 % where 2 % are allowed, because its variance is smallest
where its mean is. This test is also asymptotic: `LEAST_EXPECTED` gives its minimum sample.
"""

import numpy as np
from scipy.special import ndtr

from q36eval.stats._contrast import Array, Contrast

LEAST_EXPECTED = 30.0
"""The minimum of equal clusters times the margin for this test. At a level of 2 %, if every change is a loss, its error
rate is 5.9 % at 140 items and a margin of .02, and 2.1 to 2.3 % with 30 to 50 expected losses (exact, by a test).
"""

NEWTON_STEPS = 100
LARGEST_ROOT = 37.0
"""Beyond it the normal tail is zero in double precision."""


def p_value(gains: Array, counts: Array) -> Array:
    """p-values [S] of H0: E[gain] <= 0, from `gains` [R] and the number of times each was seen, `counts` [S, R].

    1.0 if the mean gain is not positive or nothing was seen; 0.0 if gains are positive and none is negative.
    """
    counts = np.atleast_2d(np.asarray(counts, dtype=np.float64))
    seen = counts > 0
    worst = np.where(seen, -gains, -np.inf).max(axis=1, initial=-np.inf)
    positive = counts @ gains > 0
    certain = positive & (worst <= 0)
    solved = positive & (worst > 0)
    p = np.where(certain, 0.0, 1.0)
    if solved.any():
        log_wealth = _greatest_log_wealth(gains, counts[solved], worst[solved])
        p[solved] = ndtr(-np.minimum(np.sqrt(2.0 * np.maximum(log_wealth, 0.0)), LARGEST_ROOT))
    return p


def _greatest_log_wealth(gains: Array, counts: Array, worst: Array) -> Array:
    """max over bets in (0, 1 / worst) [S] of sum counts * log(1 + bet * gains), which is concave: safe Newton steps."""
    low, high = np.zeros(len(counts)), 1.0 / worst
    bet = 0.5 * high
    for _ in range(NEWTON_STEPS):
        factors = np.where(counts > 0, 1.0 + bet[:, None] * gains, 1.0)
        scaled = gains / factors
        slope = (counts * scaled).sum(axis=1)
        low, high = np.where(slope > 0, bet, low), np.where(slope > 0, high, bet)
        step = bet + slope / (counts * scaled**2).sum(axis=1)
        following = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        if np.all(np.abs(following - bet) <= 1e-12 * following):
            break
        bet = following
    factors = np.where(counts > 0, np.maximum(1.0 + bet[:, None] * gains, 1e-300), 1.0)
    logs: Array = (counts * np.log(factors)).sum(axis=1)
    return logs


def p_mean_at_least(contrast: Contrast, margin: float) -> float:
    """p-value of H0: E[sum z] >= margin * E[units]; errored units count as `high`, their worst.

    Small when the mean is significantly below `margin`. The clusters are weighted by their sizes, without a cap.
    """
    totals = contrast.units + contrast.errored
    if totals.size == 0 or not contrast.finite:
        return 1.0
    errored = np.where(contrast.errored > 0, contrast.errored * contrast.high, 0.0)
    gains, row = np.unique(margin * totals - (contrast.sums + errored), return_inverse=True)
    counts = np.bincount(row.reshape(-1), weights=contrast.counts, minlength=len(gains)).astype(np.float64)
    return float(p_value(gains, counts)[0])


def effective_clusters(units: float, squares: float) -> float:
    """The equivalent number of equal clusters: (sum u)^2 / sum u^2 (Kish, "Survey Sampling", 1965, section 8.2)."""
    return units**2 / squares if squares else 0.0
