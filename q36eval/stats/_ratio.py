"""The ratio of two means of unbounded values, by inverting a paired test over the ratio.

A ratio of rho means that branch - rho * reference is 0 on average (Fieller, J. R. Statist. Soc. B 16 (1954), 175-185),
which a bootstrap-t over clusters tests: Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), section 12.5. No
quotient is ever resampled, so a reference near zero yields no bound instead of extreme values.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from q36eval.records import Clusters, Interval
from q36eval.stats import _bootstrap
from q36eval.stats._bootstrap import MIN_CLUSTERS, SEED, resamples
from q36eval.stats._contrast import LARGEST, Array

BISECTION_STEPS = 40
FARTHEST = 1e6
"""Bounds are searched up to this many times the size of the ratio, or of 1 if that is larger."""


@dataclass(frozen=True)
class RatioInference:
    """Tests and bounds on sum(branch) / sum(reference) over clusters, both [C], `errored` units in all."""

    branch: Array
    reference: Array
    errored: int

    @classmethod
    def of(cls, clusters: Clusters) -> "RatioInference":
        """The scored clusters in an order independent of the order of the items.

        Raises:
            ValueError: clusters without a reference.
        """
        if clusters.reference is None:
            raise ValueError("these clusters hold no reference to compare with")
        columns = zip(clusters.branch, clusters.reference, clusters.units, strict=True)
        rows = sorted((branch, reference) for branch, reference, units in columns if units)
        branch, reference = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        return cls(branch, reference, sum(clusters.errored))

    @property
    def ratio(self) -> float:
        """NaN if the reference's mean is nearly zero or not positive, or if nothing was scored."""
        branch, reference = float(self.branch.sum()), float(self.reference.sum())
        return branch / reference if reference > abs(branch) / FARTHEST else float("nan")

    @cached_property
    def why_not(self) -> str | None:
        """Why no bound exists; None if one does."""
        if self.branch.size == 0 or not (np.abs([self.branch, self.reference]) < LARGEST).all():
            return "no finite evidence"
        if self.errored:
            return "errored units of unbounded value"
        if self.branch.size < MIN_CLUSTERS:
            return "too few clusters"
        return None if np.isfinite(self.ratio) else "the reference's mean is not positive"

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: ratio >= margin. At least the p-value of a reference whose mean is not positive."""
        if self.why_not is not None or not self.ratio < margin:
            return 1.0
        return max(self._reference_p, self._p_not_negative(1.0, margin - self.ratio))

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: ratio <= margin."""
        if self.why_not is not None or not self.ratio > margin:
            return 1.0
        return max(self._reference_p, self._p_not_negative(-1.0, self.ratio - margin))

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2; infinite if none exists."""
        if not np.isfinite(self.ratio):
            why = self.why_not or "no finite evidence"
            return Interval(lower=np.nan, upper=np.nan, level=level, method=f"none: {why}")
        alpha = (1.0 - level) / 2.0
        why_not = self.why_not
        if why_not is None and self._reference_p > alpha:
            why_not = "the reference's mean is not clearly positive"
        if why_not is not None:
            return Interval(lower=-np.inf, upper=np.inf, level=level, method=f"none: {why_not}")
        bounds = (self._bound(alpha, -1.0), self._bound(alpha, 1.0))
        return Interval(lower=bounds[0], upper=bounds[1], level=level, method="bootstrap-t of the difference")

    def _bound(self, alpha: float, side: float) -> float:
        """The ratio nearest to the estimate, on that side, that is rejected at `alpha`; infinite if none is."""

        def refuted(distance: float) -> bool:
            margin = self.ratio + side * distance
            return (self.p_at_least(margin) if side > 0 else self.p_at_most(margin)) <= alpha

        scale = max(1.0, abs(self.ratio))
        near, far = 0.0, 1e-12 * scale
        while not refuted(far):
            near, far = far, 4.0 * far
            if far > FARTHEST * scale:
                return side * float("inf")
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (near + far)
            near, far = (near, middle) if refuted(middle) else (middle, far)
        return self.ratio + side * far

    @cached_property
    def _reference_p(self) -> float:
        """p-value of H0: the reference's mean is not positive."""
        return self._p_not_negative(0.0, 1.0)

    def _p_not_negative(self, residual: float, reference: float) -> float:
        """p-value of H0: the mean of z is 0 or more.

        z = `residual` * (branch - ratio * reference) - `reference` * reference; the first bracket has mean 0.
        """
        means, errors = self._means_and_errors(self._moments.sum(axis=0, keepdims=True), residual, reference)
        if errors[0] == 0:
            return 0.0 if means[0] < 0 else 1.0
        resampled, their_errors = self._means_and_errors(self._resampled, residual, reference)
        shifts = resampled - means[0]
        with np.errstate(divide="ignore"):
            t = np.divide(shifts, their_errors, out=np.zeros_like(shifts), where=shifts != 0)
        return (int(np.count_nonzero(t <= means[0] / errors[0])) + 1) / (int(t.size) + 1)

    def _means_and_errors(self, totals: Array, residual: float, reference: float) -> tuple[Array, Array]:
        """Means of z and their standard errors from moment totals [R, 5]."""
        count = self.branch.size
        means = (residual * totals[:, 0] - reference * totals[:, 1]) / count
        squares = residual**2 * totals[:, 2] - 2 * residual * reference * totals[:, 3] + reference**2 * totals[:, 4]
        spread = np.maximum(squares - count * means**2, 0.0)
        return means, np.sqrt(spread / count / (count - 1))

    @cached_property
    def _moments(self) -> Array:
        """Per cluster [C, 5]: residual, reference, and the products of both."""
        residuals = self.branch - self.ratio * self.reference
        columns = (residuals, self.reference, residuals**2, residuals * self.reference, self.reference**2)
        return np.stack(columns, axis=1)

    @cached_property
    def _resampled(self) -> Array:
        """Totals of the moments over RESAMPLES resamples of the clusters [RESAMPLES, 5]."""
        drawn = resamples(self.branch.size, _bootstrap.RESAMPLES, SEED)
        return np.concatenate([weights @ self._moments for weights in drawn])
