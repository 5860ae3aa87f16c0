"""Paired 0/1 items as evidence: the exact test where it holds, and why it does not where it does not."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from q36eval.records import Clusters, Interval
from q36eval.stats import _likelihood
from q36eval.stats._contrast import Contrast
from q36eval.stats._exact import MOST_PAIRS, ExactDifference

METHOD = "exact (unconditional)"
ASYMPTOTIC_METHOD = "empirical likelihood"
BISECTION_STEPS = 40


@dataclass(frozen=True)
class PairedProportions:
    """Tests and bounds on the rate of `worse` less that of `better`, of `scored` pairs beside `errored` ones.

    Exact up to `MOST_PAIRS`; of more, by empirical likelihood where the margin is expected in enough of them, which at
    such numbers is any margin above 0.15 %, else exact all the same.

    Errored pairs are all worse where the difference is to lie below something, and all better where above: the best and
    the worst answers that they could have been.
    """

    worse: int
    better: int
    scored: int
    errored: int = 0

    @property
    def mean(self) -> float:
        """The difference among scored pairs; NaN without one."""
        return (self.worse - self.better) / self.scored if self.scored else float("nan")

    def negated(self) -> "PairedProportions":
        """The pairs with both sides changed over."""
        return PairedProportions(self.better, self.worse, self.scored, self.errored)

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: difference >= margin. 1.0 where nothing was scored."""
        return self._p_below(margin) if self.scored and margin == margin else 1.0

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: difference <= margin. 1.0 where nothing was scored."""
        return self.negated().p_at_least(-margin)

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        if not self.scored:
            nan = float("nan")
            return Interval(lower=nan, upper=nan, level=level, method="none: no finite evidence")
        alpha = (1.0 - level) / 2.0
        lower, upper = -self.negated()._upper_bound(alpha), self._upper_bound(alpha)
        return Interval(lower=lower, upper=upper, level=level, method=METHOD if self._few else ASYMPTOTIC_METHOD)

    @property
    def _few(self) -> bool:
        return self.scored + self.errored <= MOST_PAIRS

    def _p_below(self, margin: float) -> float:
        if self._few or abs(margin) * (self.scored + self.errored) < _likelihood.LEAST_EXPECTED:
            return self._exact.p_at_least(margin)
        return _likelihood.p_mean_at_least(self._contrast, margin)

    def _upper_bound(self, alpha: float) -> float:
        if self._few:
            return self._exact.upper_bound(alpha)
        low, high = self._contrast.mean, 1.0
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._p_below(middle) <= alpha else (middle, high)
        return high

    @cached_property
    def _exact(self) -> ExactDifference:
        return ExactDifference(self.worse + self.errored, self.better, self.scored + self.errored)

    @cached_property
    def _contrast(self) -> Contrast:
        worse, equal = self.worse + self.errored, self.scored - self.worse - self.better
        counts = np.array([worse, equal, self.better], dtype=np.float64)
        return Contrast(np.array([1.0, 0.0, -1.0]), np.ones(3), np.zeros(3), counts, -1.0, 1.0)


def pairs_of(clusters: Clusters) -> PairedProportions | str:
    """The pairs in which a failure is 1, or why an exact test would not hold for these clusters.

    Raises:
        ValueError: clusters without a reference.
    """
    if clusters.reference is None:
        raise ValueError("these clusters hold no reference to compare with")
    if clusters.schedule is not None:
        return "asking may stop early"
    if clusters.weights is not None:
        return "items count unequally"
    columns = (clusters.units, clusters.errored, clusters.branch, clusters.reference)
    counts = Counter(zip(*columns, strict=True))
    kinds = [kind for kind in counts if kind[0] or kind[1]]
    if any(units + errored != 1 for units, errored, _, _ in kinds):
        return "items share clusters"
    if any(units and not {branch, reference} <= {0.0, 1.0} for units, _, branch, reference in kinds):
        return "scores lie between 0 and 1"
    return PairedProportions(
        worse=counts[1, 0, 1.0, 0.0],
        better=counts[1, 0, 0.0, 1.0],
        scored=sum(counts[kind] for kind in kinds if kind[0]),
        errored=sum(counts[kind] for kind in kinds if kind[1]),
    )


def not_exact(interval: Interval, why: str | None) -> Interval:
    """An interval that stands in for an exact one, with the reason in its method."""
    if why is None or interval.method.startswith("none"):
        return interval
    return interval.model_copy(update={"method": f"{interval.method}, not exact: {why}"})
