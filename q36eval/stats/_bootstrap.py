"""Clustered ratio means of unbounded values: the bootstrap-t, and a test for untrustworthy tails.

Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), section 12.5: the distribution of (estimate* - estimate)
/ standard_error* over resampled clusters replaces the unknown one of (estimate - truth) / standard_error. On skewed
per-document divergences its upper bound misses far less often than the percentile bootstrap's, but still more often
than nominal, because a sample seldom holds the tail that carries the mean. So the level of the upper bound is
calibrated (Loh, "Calibrating confidence coefficients", JASA 82 (1987), 155-162) on lognormal clusters whose spread is
that of the sample's upper half.

A mean dominated by rare large values lies above most samples' means and bounds: at the margin the upper bound misses 5
to 14 % if clusters are Pareto with an index of 3 to 1.5. Such a tail shows in the sample: Hill's estimate (Ann.
Statist. 3 (1975), 1163-1174) over the upper tenth of the excesses over the median (shifted by it, so that a constant
added to every value changes nothing) is then larger than an exponential tail's. In that case a bound only just inside
the limit proves nothing (`why_untrusted`). benchmarks/README.md has the miss rates with and without this check, and its
cost for good branches.

If almost all clusters are zero up to rounding, as for an engine that repeats another bit for bit except on a few texts,
resamples without any spread are common and the bootstrap-t has no upper bound. The bound is then the upper bound on the
share of nonzero clusters (Clopper and Pearson, Biometrika 26 (1934), 404-413) times `BEYOND` times the largest
(`Sparse`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from q36eval.records import Clusters, Estimator, Reason
from q36eval.stats._contrast import Array, Contrast, finite_bounds, linear_contrast

RESAMPLES = 4_999
"""(RESAMPLES + 1) * 0.025 is whole, so a bound is an order statistic and agrees with the p-values exactly."""

MIN_CLUSTERS = 8
"""With fewer clusters the resampled standard error is too often near zero to be informative."""

CHUNK_CELLS = 2_000_000

CALIBRATION = 0.3
"""The upper bound uses the normal quantile of its level plus this times the squared log-spread of the clusters.

Chosen by simulation at 140 clusters; benchmarks/README.md has the miss rates with and without it. More clusters do not
help: with 280 lognormal clusters of sigma 1.2 the uncalibrated bound misses 5.4 %, the same as with 140.
"""

LARGEST_LOG_SPREAD = 1.5
"""Slightly beyond the simulated range."""

BEYOND = 10.0
"""The assumed maximum of clusters that are seldom nonzero, as a multiple of the largest one seen. Chosen by simulation:
where it is used, the bound misses up to 0.3 % of lognormal values of sigma 1, 3.5 % of sigma 1.5 and 11 % of sigma 2 (8
to 140 clusters, of equal or lognormal sizes, 0.3 to 5 of them nonzero on average); without it up to 32 % of sigma 1.5.
"""

WITHOUT_SPREAD = 0.004
"""The share of all-zero resamples from which on no bootstrap is used: the calibrated level of a bound at 97.5 % is 99.6
%."""

ROUNDING = 1e-4
"""A sum whose size is at most this share of the largest is a rounded zero: a divergence computed in float32 may be
-1e-6 per token. A value that can really be negative has sums that are as far below zero as others are above."""

NORMAL = NormalDist()

SEED = 20_260_417
"""Fixed, so that the same evidence always gives the same verdict."""


@dataclass(frozen=True)
class Sparse:
    """`clusters` nonnegative values, of which `others` exceed a rounded zero.

    The mean is at most their share times `scale`, plus `rest`, the contribution of the rounded zeros.
    """

    clusters: int
    others: int
    scale: float
    rest: float

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: mean >= margin."""
        if self.scale == 0:
            return 0.0 if self.rest < margin else 1.0
        share = (margin - self.rest) / self.scale
        return 0.0 if share >= 1 else float(bdtr(self.others, self.clusters, max(share, 0.0)))

    def upper(self, alpha: float) -> float:
        """Upper bound, one-sided at 1 - alpha."""
        return self.rest + self.scale * float(betaincinv(self.others + 1, self.clusters - self.others, 1 - alpha))


@dataclass(frozen=True)
class Studentised:
    """A ratio mean, its linearised cluster standard error and the sorted bootstrap t-statistics [RESAMPLES].

    `shift` calibrates the level of the upper bound, in standard normal units; `sparse` bounds the mean from above if
    resamples cannot. Identical clusters have no standard error: unseen clusters are bounded by `sparse` from above and
    by zero from below.
    """

    mean: float
    standard_error: float
    t_sorted: Array
    shift: float = 0.0
    sparse: Sparse | None = None

    @property
    def alike(self) -> Sparse | None:
        """`sparse` if all clusters are identical."""
        return self.sparse if self.standard_error == 0 else None

    @property
    def method(self) -> str:
        """The method of the bounds."""
        if self.alike is not None:
            return "by the share that is not alike" if self.mean else "bootstrap-t"
        return "bootstrap-t" if self.sparse is None else "bootstrap-t, above by the share that is not zero"

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: mean >= margin (small when the mean is significantly below it)."""
        if self.sparse is not None:
            return self.sparse.p_at_least(margin)
        t_observed = (self.mean - margin) / self.standard_error
        count = int(np.searchsorted(self.t_sorted, t_observed, side="right"))
        p = (count + 1) / (self.t_sorted.size + 1)
        # the round trip is inexact, and an uncalibrated p-value must agree exactly with its bound
        return NORMAL.cdf(NORMAL.inv_cdf(p) + self.shift) if self.shift and p < 1.0 else p

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: mean <= margin (small when the mean is significantly above it)."""
        if self.alike is not None:
            return self.alike.p_at_least(self.mean + BEYOND * (self.mean - margin))
        t_observed = (self.mean - margin) / self.standard_error
        count = self.t_sorted.size - int(np.searchsorted(self.t_sorted, t_observed, side="left"))
        return (count + 1) / (self.t_sorted.size + 1)

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Lower and upper bound, each one-sided at 1 - alpha."""
        if self.alike is not None:
            upper = self.alike.upper(alpha)
            return self.mean - (upper - self.mean) / BEYOND, upper
        rank = int(np.floor(alpha * (self.t_sorted.size + 1)))
        if rank < 1:
            return -np.inf, np.inf
        lower = self.mean - float(self.t_sorted[-rank]) * self.standard_error
        if self.sparse is not None:
            return lower, self.sparse.upper(alpha)
        if self.shift:
            rank = int(np.floor(NORMAL.cdf(NORMAL.inv_cdf(alpha) - self.shift) * (self.t_sorted.size + 1)))
        upper = self.mean - float(self.t_sorted[rank - 1]) * self.standard_error if rank else np.inf
        return lower, upper


def studentise(contrast: Contrast, seed: int) -> Studentised | None:
    """Bootstrap-t of `sum(sums) / sum(units)`; None with under MIN_CLUSTERS scored clusters or a non-finite sum."""
    scored = contrast.units > 0
    sums, units = contrast.sums[scored], contrast.units[scored]
    if units.size < MIN_CLUSTERS or not contrast.finite:
        return None
    mean = float(sums.sum() / units.sum())
    residuals = sums - mean * units
    # rounding differences between identical clusters are not variance
    if np.abs(residuals).max() <= ROUNDING * np.abs(sums).max():
        return Studentised(mean, 0.0, np.empty(0), sparse=Sparse(sums.size, 0, BEYOND * abs(mean), mean))
    moments = np.stack([residuals, units, residuals**2, residuals * units, units**2], axis=1)
    standard_error = linearised_errors(moments.sum(axis=0, keepdims=True), np.zeros(1), units.size)[0]
    t = _t_statistics(moments, seed)
    return Studentised(mean, float(standard_error), t, _calibration(sums, units), _sparse(sums, units))


def _sparse(sums: Array, units: Array) -> Sparse | None:
    """The bound on the mean if too many resamples consist of zeros; else None."""
    rounded = ROUNDING * np.abs(sums).max()
    others = int(np.count_nonzero(sums > rounded))
    if (sums < -rounded).any() or (1 - others / sums.size) ** sums.size <= WITHOUT_SPREAD:
        return None
    total = float(units.sum())
    rest = float(sums[sums <= rounded].sum()) / total
    largest = max(float(sums.max()) * sums.size / total, float((sums / units).max()))  # in units of an average cluster
    return Sparse(sums.size, others, BEYOND * largest, rest)


def _calibration(sums: Array, units: Array) -> float:
    """The shift of the upper bound's level; zero for values that may be negative, whose tails differ.

    The log-spread is that of the upper half, which carries the mean: clusters at or near zero do not affect it.
    """
    if (sums < -ROUNDING * np.abs(sums).max()).any():
        return 0.0
    middle, high = np.quantile(sums / units, [0.5, 0.9])
    if middle <= 0:
        return CALIBRATION * LARGEST_LOG_SPREAD**2
    spread = float(np.log(high / middle)) / NORMAL.inv_cdf(0.9)
    return CALIBRATION * min(spread, LARGEST_LOG_SPREAD) ** 2


def _t_statistics(moments: Array, seed: int) -> Array:
    """Sorted (mean* - mean) / standard_error* over RESAMPLES resamples of the rows of `moments` [C, 5]."""
    n_clusters = moments.shape[0]
    pieces = []
    for weights in resamples(n_clusters, RESAMPLES, seed):
        totals = weights @ moments
        shifts = totals[:, 0] / totals[:, 1]
        errors = linearised_errors(totals, shifts, n_clusters)
        with np.errstate(divide="ignore", invalid="ignore"):
            pieces.append(np.where(shifts == 0, 0.0, shifts / errors))
    return np.sort(np.concatenate(pieces))


def resamples(n_clusters: int, count: int, seed: int | tuple[int, ...]) -> Iterator[Array]:
    """The number of draws of each cluster in `count` resamples with replacement, in batches [r, C]."""
    drawn = max(count, RESAMPLES)
    if n_clusters * drawn <= CHUNK_CELLS:
        yield _all_resamples(n_clusters, drawn, seed)[:count].astype(np.float64)
    else:
        yield from _drawn(n_clusters, count, seed)


@lru_cache(maxsize=16)
def _all_resamples(n_clusters: int, count: int, seed: int | tuple[int, ...]) -> NDArray[np.uint16]:
    """Cached: drawing takes most of a bootstrap's time, and all metrics of a run use the same draws."""
    (drawn,) = _drawn(n_clusters, count, seed)
    return drawn.astype(np.uint16)


def _drawn(n_clusters: int, count: int, seed: int | tuple[int, ...]) -> Iterator[Array]:
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK_CELLS // n_clusters)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        yield rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=size).astype(np.float64)


def linearised_errors(totals: Array, shifts: Array, n_clusters: int) -> Array:
    """Linearised cluster standard errors of ratio means from moment totals [R, 5] and their shifts [R].

    var = C / (C - 1) * sum((residual - shift * units)^2) / (sum units)^2 (Cochran, "Sampling Techniques", eq. 6.13).
    """
    squares = totals[:, 2] - 2 * shifts * totals[:, 3] + shifts**2 * totals[:, 4]
    return np.sqrt(np.maximum(squares, 0.0) * n_clusters / (n_clusters - 1)) / totals[:, 1]


TAIL_SHARE = 0.1
LEAST_IN_TAIL = 8

HEAVY = 0.45
"""The median estimate is 0.43 for an exponential tail and a lognormal one of sigma 0.5, and 0.67 for sigma 1.2."""

ROOM = 0.15
"""With a heavy tail, the bound must be inside the limit by this share of it."""


def tail_weight(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Hill's estimate over the upper tenth of the excesses over the median, at least 8 values; larger is heavier.

    Infinite if fewer values exceed the median: the mean then depends on those few.
    """
    ordered = np.sort(values - np.median(values))
    count = max(LEAST_IN_TAIL, int(TAIL_SHARE * ordered.size))
    if ordered.size <= count or ordered[-count - 1] <= 0:
        return np.inf
    return float(np.log(ordered[-count:] / ordered[-count - 1]).mean())


def why_untrusted(clusters: Clusters, estimator: Estimator, upper: float, limit: float) -> Reason | None:
    """Why an upper bound on the mean loss proves nothing about `limit` although it is inside; None if it does.

    Only for means of unbounded values and for perplexities, whose bounds come from a bootstrap.
    """
    if estimator not in ("mean", "perplexity") or finite_bounds(clusters.bounds) or upper <= (1.0 - ROOM) * limit:
        return None
    contrast = linear_contrast(clusters, 1.0, -1.0 if estimator == "perplexity" else 0.0)
    scored = contrast.units > 0
    weight = tail_weight(contrast.sums[scored] / contrast.units[scored])
    if weight < HEAVY:
        return None
    return Reason(
        "heavy-tail",
        f"the tail of the {int(scored.sum())} clusters is heavy (Hill's estimate {weight:.2f}, from {HEAVY} on), so "
        f"a bound from them misses more often than stated, and this one is within {ROOM:.0%} of the margin; more "
        f"clusters would decide it",
    )
