"""The mean of several strata that count equally, however many units each holds: a stratified bootstrap-t.

Clusters are resampled within their stratum (Davison & Hinkley, "Bootstrap Methods and their Application", 1997, section
3.2) and each resample is studentised by the linearised variance of a separate ratio estimator (Cochran, "Sampling
Techniques", 1977, section 6.11): with S strata of equal weight, var = sum_s var_s / S^2. Seen over 1,000 simulated
corpora of 7 slices of 20 lognormal documents each, where either bound should miss 2.5 %: the upper one missed 3.8 %
(sigma 0.5), 5.5 % (sigma 1), 8.5 % (sigma 1.5), the lower one 2.3 %, 1.7 %, 1.5 %.
"""

from collections.abc import Sequence

import numpy as np

from q36eval.records import Clusters, Interval
from q36eval.stats import _bootstrap
from q36eval.stats._bootstrap import Studentised, linearised_errors, resamples
from q36eval.stats._contrast import Array

MIN_PER_STRATUM = 8
"""With fewer clusters in a stratum its variance is little known, and resamples without any spread are common."""


class StratifiedMean:
    """The mean of the strata's ratio means, with tests and bounds.

    Raises:
        ValueError: clusters without strata.
    """

    def __init__(self, clusters: Clusters, seed: int) -> None:
        if clusters.strata is None:
            raise ValueError("a stratified mean needs clusters that name their strata")
        self._low, self._high = clusters.bounds or (-np.inf, np.inf)
        self._errored = sum(clusters.errored)
        self._groups = [_stratum(clusters, name) for name in sorted(set(clusters.strata))]
        means = [sums.sum() / units.sum() if units.sum() else np.nan for sums, units in self._groups]
        self.mean = float(np.mean(means)) if means else float("nan")
        scarce = any(len(units) < MIN_PER_STRATUM for _, units in self._groups) or not self._groups
        usable = bool(np.isfinite(self.mean)) and not scarce and not self._errored
        self._studentised = _studentise(self._groups, seed) if usable else None
        self._why_not = "errored units of unbounded value" if self._errored else "too few clusters in a stratum"

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: mean >= margin."""
        return 1.0 if self._studentised is None or margin != margin else self._studentised.p_at_least(margin)

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: mean <= margin."""
        return 1.0 if self._studentised is None or margin != margin else self._studentised.p_at_most(margin)

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        if not np.isfinite(self.mean):
            return Interval(lower=np.nan, upper=np.nan, level=level, method="none: no finite evidence")
        if self._studentised is None:
            return Interval(lower=self._low, upper=self._high, level=level, method=f"none: {self._why_not}")
        lower, upper = self._studentised.bounds((1.0 - level) / 2.0)
        return Interval(
            lower=max(lower, self._low), upper=min(upper, self._high), level=level, method="stratified bootstrap-t"
        )


def _stratum(clusters: Clusters, name: str) -> tuple[Array, Array]:
    """Sums and units of one stratum's scored clusters, in an order that does not depend on that of the items."""
    assert clusters.strata is not None
    rows = [
        (total, units)
        for total, units, stratum in zip(clusters.branch, clusters.units, clusters.strata, strict=True)
        if stratum == name and units > 0
    ]
    columns = np.array(sorted(rows), dtype=np.float64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _studentise(groups: Sequence[tuple[Array, Array]], seed: int) -> Studentised:
    means = [float(sums.sum() / units.sum()) for sums, units in groups]
    residuals = [sums - mean * units for (sums, units), mean in zip(groups, means, strict=True)]
    largest = max(float(np.abs(sums).max()) for sums, _ in groups)
    mean = float(np.mean(means))
    # identical clusters leave only the rounding of their mean, which is not variance
    if max(float(np.abs(r).max()) for r in residuals) <= 8 * np.finfo(np.float64).eps * largest:
        return Studentised(mean, 0.0, np.empty(0))
    variance = 0.0
    shifts, variances = np.zeros(_bootstrap.RESAMPLES), np.zeros(_bootstrap.RESAMPLES)
    for number, ((_, units), residual) in enumerate(zip(groups, residuals, strict=True)):
        moments = np.stack([residual, units, residual**2, residual * units, units**2], axis=1)
        variance += float(linearised_errors(moments.sum(axis=0, keepdims=True), np.zeros(1), len(units))[0]) ** 2
        # each stratum draws on its own, or their shifts would move together
        drawn = resamples(len(units), _bootstrap.RESAMPLES, (seed, number))
        totals = np.concatenate([weights @ moments for weights in drawn])
        shift = totals[:, 0] / totals[:, 1]
        shifts += shift
        variances += linearised_errors(totals, shift, len(units)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(shifts == 0, 0.0, shifts / np.sqrt(variances))
    return Studentised(mean, float(np.sqrt(variance)) / len(groups), np.sort(t))
