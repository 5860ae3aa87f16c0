"""Which outcomes of paired 0/1 items speak at least as strongly for a small difference of rates as one that was seen.

Of n pairs, `worse` fail on the branch alone and `better` on the reference alone. Outcomes are ordered by the upper
limit on the difference that the score statistic gives them (Tango, Statist. Med. 17 (1998), 891-908), which rises with
`worse` and falls with `better`. The order is all that is taken from it: its normal approximation decides nothing.
"""

import numpy as np
from numpy.typing import NDArray

from q36eval.stats._contrast import Array

ORDERING_Z = 1.959963984540054
"""Outcomes are ordered by limits of 97.5 %, at whatever level they are then judged, so that levels are nested."""

TIES = 1e-9
"""Statistics that differ by less are equal: an outcome left out by rounding would make a bound too short."""

BISECTION_STEPS = 50


def score_statistic(worse: Array | float, better: Array | float, n: int, difference: float) -> Array:
    """Tango's statistic of p_worse - p_better = `difference`; its variance is that at the likeliest p_better.

    Minus or plus infinity where the outcome is impossible under the hypothesis.
    """
    worse, better = np.asarray(worse, dtype=np.float64), np.asarray(better, dtype=np.float64)
    linear = (2 * n - worse + better) * difference - worse - better
    constant = -better * difference * (1.0 - difference)
    p_better = (np.sqrt(np.maximum(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * p_better + difference * (1.0 - difference))
    excess = worse - better - n * difference
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic: Array = np.where(excess == 0, 0.0, excess / np.sqrt(np.maximum(variance, 0.0)))
    return statistic


def most_worse(worse: int, better: int, n: int) -> NDArray[np.int64]:
    """For 0 to n `better` pairs [n + 1], the most `worse` ones whose limit is no greater than that of the outcome.

    -1 where not even 0. It falls only where there is no room for more: a further `better` keeps an outcome in
    (Barnard's convexity; Sidik, Statist. Med. 22 (2003), 265-278, shows it for this statistic).
    """
    betters = np.arange(n + 1, dtype=np.float64)
    room = n - np.arange(n + 1)
    limit = _limit(worse, better, n)
    observed = float(score_statistic(worse, better, n, limit)) + TIES
    inside, outside = np.full(n + 1, -1), room + 1
    while bool((outside - inside > 1).any()):
        middle = (inside + outside) // 2
        held = (score_statistic(np.maximum(middle, 0), betters, n, limit) <= observed) | (middle < 0)
        inside, outside = np.where(held, middle, inside), np.where(held, outside, middle)
    return inside


def _limit(worse: int, better: int, n: int) -> float:
    """The difference at which the statistic of the outcome falls to -ORDERING_Z; 1 where it never does."""
    low, high = (worse - better) / n, 1.0
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if float(score_statistic(worse, better, n, middle)) <= -ORDERING_Z:
            high = middle
        else:
            low = middle
    return high
