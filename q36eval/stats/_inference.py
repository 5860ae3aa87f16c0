"""One-sided tests and bounds on the mean of a contrast: betting if bounded, bootstrap-t if not.

Errored units are imputed at their worst for the upper bound and at their best for the lower one; if that end of the
range is infinite, that side has no bound.
"""

from dataclasses import dataclass
from functools import cached_property

from q36eval.records import Interval
from q36eval.stats import _betting
from q36eval.stats._bootstrap import SEED, Studentised, studentise
from q36eval.stats._contrast import Array, Contrast


@dataclass(frozen=True)
class MeanInference:
    """Tests and bounds on the mean of one contrast.

    `above_shape` is the prior over bets in tests for a mean above a value (`_betting.bets`). The planned bets [K, R],
    if any, are those for a mean below and above a value (`_betting.block_bets`).
    """

    contrast: Contrast
    above_shape: float = _betting.EAGER
    planned_below: Array | None = None
    planned_above: Array | None = None

    @property
    def mean(self) -> float:
        """The ratio mean over scored units."""
        return self.contrast.mean

    @cached_property
    def _studentised(self) -> Studentised | None:
        return studentise(self.contrast, SEED)

    @cached_property
    def _capped(self) -> Contrast:
        return self.contrast.with_capped_sizes()

    @property
    def _worst_mean(self) -> float:
        """The plain mean with errored units at their worst: no test contradicts it, whatever the weights."""
        return self._imputed_mean(self.contrast.high)

    @property
    def _best_mean(self) -> float:
        return self._imputed_mean(self.contrast.low)

    def _imputed_mean(self, value: float) -> float:
        errored = self.contrast.total(self.contrast.errored)
        total = self.contrast.total(self.contrast.units) + errored
        return (self.contrast.total(self.contrast.sums) + errored * value) / total if total else float("nan")

    @property
    def _any_errored(self) -> bool:
        return bool(self.contrast.errored.sum() > 0)

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: mean >= margin. 1.0 for non-finite evidence."""
        if margin != margin or not self.contrast.finite:
            return 1.0
        if self.contrast.bounded:
            if self._worst_mean >= margin:
                return 1.0
            margin = self.contrast.with_cut_off_at(self.contrast.high, margin)
            return _betting.p_mean_at_least(self._capped, margin, planned=self.planned_below)
        if self._studentised is None or self._any_errored:
            return 1.0
        return self._studentised.p_at_least(margin)

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: mean <= margin. 1.0 for non-finite evidence."""
        if margin != margin or not self.contrast.finite:
            return 1.0
        if self.contrast.bounded:
            if self._best_mean <= margin:
                return 1.0
            margin = self.contrast.with_cut_off_at(self.contrast.low, margin)
            return _betting.p_mean_at_most(self._capped, margin, self.above_shape, self.planned_above)
        if self._studentised is None or self._any_errored:
            return 1.0
        return self._studentised.p_at_most(margin)

    def _lower_bound(self, alpha: float) -> float:
        bound = _betting.lower_bound(self._capped, alpha, self.above_shape, self.planned_above)
        return self.contrast.with_cut_off_put_back(self.contrast.low, bound)

    def _upper_bound(self, alpha: float) -> float:
        bound = _betting.upper_bound(self._capped, alpha, planned=self.planned_below)
        return self.contrast.with_cut_off_put_back(self.contrast.high, bound)

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        alpha = (1.0 - level) / 2.0
        if not self.contrast.finite or self.contrast.units.sum() == 0:
            return Interval(lower=float("nan"), upper=float("nan"), level=level, method="none: no finite evidence")
        if self.contrast.bounded:
            lower = min(self._best_mean, self._lower_bound(alpha))
            upper = max(self._worst_mean, self._upper_bound(alpha))
            return Interval(lower=lower, upper=upper, level=level, method="betting")
        if self._studentised is None or self._any_errored:
            why = "errored units of unbounded value" if self._any_errored else "too few clusters"
            return Interval(lower=self.contrast.low, upper=self.contrast.high, level=level, method=f"none: {why}")
        lower, upper = self._studentised.bounds(alpha)
        within = {"lower": max(lower, self.contrast.low), "upper": min(upper, self.contrast.high)}
        return Interval(**within, level=level, method=self._studentised.method)
