"""Exact tests of counts: one proportion, the share of clusters beyond a threshold, flips in either direction.

A mean hides a catastrophe in few documents; their share does not. Clusters are independent, so those beyond a threshold
are counted and tested with Clopper & Pearson (Biometrika 26 (1934), 404-413); if slices have different rates the test
holds for the mean rate (Hoeffding, Ann. Math. Statist. 27 (1956), 713-721). Clusters not drawn are not seen: a share q
with no cluster among n is missed with probability (1 - q)^n.
"""

import math

import numpy as np
from scipy.special import bdtr, bdtrc, betaincinv

from q36eval.records import Clusters, Interval


class ShareBeyond:
    """The number of clusters beyond `beyond`, with tests and bounds of their share of all clusters.

    A cluster is beyond if its largest value is. A cluster with an errored unit counts as beyond for `p_at_least` and
    the upper bound; otherwise only if a value beyond was seen.
    """

    def __init__(self, clusters: Clusters, beyond: float) -> None:
        units, errored = np.asarray(clusters.units), np.asarray(clusters.errored)
        seen = np.asarray(clusters.branch) > beyond
        evaluated = (units + errored) > 0
        self.clusters = int(evaluated.sum())
        self.beyond = int((evaluated & (units > 0) & seen).sum())
        self.open = int((evaluated & (errored > 0) & ~((units > 0) & seen)).sum())

    @property
    def share(self) -> float:
        """NaN without clusters."""
        return self.beyond / self.clusters if self.clusters else math.nan

    def p_at_least(self, share: float) -> float:
        """p-value of H0: the share beyond is >= `share`."""
        return float(bdtr(self.beyond + self.open, self.clusters, share)) if self.clusters else 1.0

    def p_at_most(self, share: float) -> float:
        """p-value of H0: the share beyond is <= `share`."""
        return float(bdtrc(self.beyond - 1, self.clusters, share)) if self.beyond else 1.0

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        return proportion_interval(self.beyond, self.clusters - self.open, level, errored=self.open)


def unseen_share(clusters: int, confidence: float) -> float:
    """The smallest share that this number of clusters detects at that confidence: 1 - (1 - confidence)^(1 / n).

    A catastrophe in a smaller share is missed with a probability above 1 - confidence.
    """
    return 1.0 - (1.0 - confidence) ** (1.0 / clusters) if clusters else 1.0


def least_clusters(share: float, confidence: float) -> int:
    """The number of clusters, none of them beyond, that shows at that confidence a share of less than `share`.

    Raises:
        ValueError: the share is not between 0 and 1.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"no number of clusters shows a share of {share:g}")
    return math.ceil(math.log(1.0 - confidence) / math.log(1.0 - share) - 1e-12)


def proportion_interval(count: int, n: int, level: float = 0.95, *, errored: int = 0) -> Interval:
    """Clopper & Pearson's interval (Biometrika 26 (1934), 404-413) for a share, with `count` seen of `n`.

    Each bound is one-sided at (1 + level) / 2, so "0 of 200" is below 1.83 % at a level of 95 %. `errored` further
    items count as none for the lower bound and as all for the upper one. Items of several strata may have different
    rates: the bounds then hold for the mean rate, because from one above the mean on no sum has a heavier tail than the
    binomial (Hoeffding, Ann. Math. Statist. 27 (1956), 713-721); only the lower bound of a single count is closer than
    that, and misses 2.53 % instead of 2.5 %. NaN if nothing was scored.

    Raises:
        ValueError: the count is negative or greater than n, or the number of errored items is negative.
    """
    if not 0 <= count <= n or errored < 0:
        raise ValueError(f"{count} of {n} with {errored} errored is no proportion")
    if n == 0:
        nan = float("nan")
        return Interval(lower=nan, upper=nan, level=level, method="none: no item was scored")
    alpha, total = (1.0 - level) / 2.0, n + errored
    most = count + errored
    lower = float(betaincinv(count, total - count + 1, alpha)) if count else 0.0
    upper = float(betaincinv(most + 1, total - most, 1.0 - alpha)) if most < total else 1.0
    return Interval(lower=lower, upper=upper, level=level, method="Clopper-Pearson")
