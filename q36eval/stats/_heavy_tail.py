"""Whether the tail of what was seen says that a bound on a mean is not to be trusted.

A mean that rests on rare large values lies above most samples' means, and their bounds with them: at the margin the
bootstrap-t's upper bound misses 5 to 14 % where clusters are Pareto with an index of 3 to 1.5. Such a tail shows in
what was drawn: Hill's estimate (Ann. Statist. 3 (1975), 1163-1174) over the upper tenth of what exceeds the median
(shifted by it, so that a constant added to every value changes nothing) is then larger than an exponential tail's.
Where it is, a bound that lies inside the limit only just proves nothing. benchmarks/README.md has how often bounds miss
with and without this, and what it costs good branches.
"""

import numpy as np

from q36eval.records import Clusters, Estimator
from q36eval.stats._contrast import finite_bounds, linear_contrast

TAIL_SHARE = 0.1
LEAST_IN_TAIL = 8

HEAVY = 0.45
"""An exponential tail's estimate is 0.43 in the middle, a lognormal one's of sigma 0.5 as much, of sigma 1.2 0.67."""

ROOM = 0.15
"""By this share of the limit a bound must lie inside it where the tail is heavy."""


def tail_weight(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Hill's estimate over the upper tenth of what exceeds the median, at least 8 values; larger is heavier.

    0.0 where so many values do not exceed it, so that nothing can be said.
    """
    ordered = np.sort(values - np.median(values))
    count = max(LEAST_IN_TAIL, int(TAIL_SHARE * ordered.size))
    if ordered.size <= count or ordered[-count - 1] <= 0:
        return 0.0
    return float(np.log(ordered[-count:] / ordered[-count - 1]).mean())


def why_untrusted(clusters: Clusters, estimator: Estimator, upper: float, limit: float) -> str | None:
    """Why a bound `upper` on the mean loss proves nothing about `limit` though it lies inside; None where it does.

    Of means of unbounded values and of perplexities, whose bounds come from a bootstrap; others need no such care.
    """
    if estimator not in ("mean", "perplexity") or finite_bounds(clusters.bounds) or upper <= (1.0 - ROOM) * limit:
        return None
    contrast = linear_contrast(clusters, 1.0, -1.0 if estimator == "perplexity" else 0.0)
    scored = contrast.units > 0
    weight = tail_weight(contrast.sums[scored] / contrast.units[scored])
    if weight < HEAVY:
        return None
    return (
        f"the tail of the {int(scored.sum())} clusters is heavy (Hill's estimate {weight:.2f}, from {HEAVY} on), so "
        f"that a bound from them misses more often than it says, and it lies within {ROOM:.0%} of the margin; more "
        f"clusters would settle it"
    )
