"""The share of clusters that lie beyond a threshold: an exact binomial test, and what so many clusters can show.

A mean hides a catastrophe in few documents; their share does not. Clusters are independent, so that those beyond a
threshold are counted and tested as Clopper & Pearson (Biometrika 26 (1934), 404-413) do; where slices have different
rates that holds for the mean rate (Hoeffding, Ann. Math. Statist. 27 (1956), 713-721). What was not drawn is not seen:
a share q of which none is among n clusters is missed with probability (1 - q)^n.
"""

import math

import numpy as np

from q36eval.records import Clusters, Estimator, Interval
from q36eval.stats._proportion import proportion_interval


class ShareBeyond:
    """How many of the clusters lie beyond `beyond`, with tests and bounds of their share of all clusters.

    Of a `maximum` a cluster lies beyond where its greatest value does; of a `perplexity` where its log perplexity per
    unit, less the reference's, does. A cluster of which something errored counts as beyond for `p_at_least` and the
    upper bound, and for the others only where it was seen to be.

    Raises:
        ValueError: another estimator, or a perplexity without its reference.
    """

    def __init__(self, clusters: Clusters, estimator: Estimator, beyond: float) -> None:
        units, errored = np.asarray(clusters.units), np.asarray(clusters.errored)
        seen = _seen(clusters, estimator) > beyond
        asked = (units + errored) > 0
        self.clusters = int(asked.sum())
        self.beyond = int((asked & (units > 0) & seen).sum())
        self.open = int((asked & (errored > 0) & ~((units > 0) & seen)).sum())

    @property
    def share(self) -> float:
        """NaN where there is no cluster."""
        return self.beyond / self.clusters if self.clusters else math.nan

    def p_at_least(self, share: float) -> float:
        """p-value of H0: the share beyond is >= `share`."""
        from scipy.special import bdtr

        return float(bdtr(self.beyond + self.open, self.clusters, share)) if self.clusters else 1.0

    def p_at_most(self, share: float) -> float:
        """p-value of H0: the share beyond is <= `share`."""
        from scipy.special import bdtrc

        return float(bdtrc(self.beyond - 1, self.clusters, share)) if self.beyond else 1.0

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        return proportion_interval(self.beyond, self.clusters - self.open, level, errored=self.open)


def _seen(clusters: Clusters, estimator: Estimator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What of each cluster is held against the threshold; anything where it has no units."""
    branch = np.asarray(clusters.branch, dtype=np.float64)
    if estimator == "maximum":
        return branch
    if estimator != "perplexity" or clusters.reference is None:
        raise ValueError(f"the share of clusters beyond a threshold is not known of a {estimator}")
    units = np.maximum(1, np.asarray(clusters.units))
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = (branch - np.asarray(clusters.reference)) / units
    return found


def unseen_share(clusters: int, confidence: float) -> float:
    """The least share of which so many clusters hold one at that confidence: 1 - (1 - confidence)^(1 / n).

    A catastrophe in a smaller share is missed more often than with probability 1 - confidence.
    """
    return 1.0 - (1.0 - confidence) ** (1.0 / clusters) if clusters else 1.0


def least_clusters(share: float, confidence: float) -> int:
    """How many clusters, not one of them beyond, show at that confidence that less than `share` of all are.

    Raises:
        ValueError: a share that is not between 0 and 1.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"no number of clusters shows a share of {share:g}")
    return math.ceil(math.log(1.0 - confidence) / math.log(1.0 - share) - 1e-12)


def most_beyond(clusters: int, share: float, confidence: float) -> int | None:
    """How many of so many clusters may lie beyond for a PASS at most; None where even none is too many."""
    from scipy.special import bdtr

    allowed = [k for k in range(clusters + 1) if bdtr(k, clusters, share) <= 1.0 - confidence]
    return max(allowed, default=None)
