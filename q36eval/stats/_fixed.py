"""The mean over a fixed list of items: what a benchmark's own questions say, and nothing of questions like them.

The list is a finite population and evaluating it is sampling without replacement: once every item is evaluated its mean
is known, and before that the items still to come must make up what those evaluated did not lose. So a bet on each block
is placed at the mean that the rest would have to have (Waudby-Smith & Ramdas, arXiv 2010.09686, section 5). Bets within
a block are equal, and a product over draws without replacement expects no more than over draws with it (Hoeffding, J.
Amer. Statist. Assoc. 58 (1963), theorem 4). This is another estimand than the population's: a branch may pass on these
items that a like list would refuse.
"""

from dataclasses import dataclass

import numpy as np

from q36eval.records import Interval
from q36eval.stats._betting import EAGER, bets
from q36eval.stats._contrast import Array, Columns

BISECTION_STEPS = 40
ROUNDING = 1e-9


@dataclass(frozen=True)
class FixedMean:
    """Tests on the mean of z = branch_weight * branch + reference_weight * reference over `units` planned units.

    `columns` are those evaluated so far, without weights; errored units count at their worst for either test. `early`
    says whether a look before the end may be taken: only where every block holds each stratum at its share.
    """

    columns: Columns
    weights: tuple[float, float]
    units: float
    early: bool

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: the mean over all items >= margin; 0 or 1 once all are evaluated."""
        return self._p(margin, negated=False)

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: the mean over all items <= margin."""
        return self._p(-margin, negated=True)

    @property
    def mean(self) -> float:
        """Over the scored items so far."""
        return self.columns.contrast(*self.weights).mean

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2; of everything, what errored units leave open."""
        alpha, contrast = (1.0 - level) / 2.0, self.columns.contrast(*self.weights)
        bounds = []
        for negated in (False, True):
            low, high = (-contrast.high, -contrast.low) if negated else (contrast.low, contrast.high)
            for _ in range(BISECTION_STEPS):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if self._p(middle, negated=negated) <= alpha else (middle, high)
            bounds.append(-high if negated else high)
        return Interval(lower=bounds[1], upper=bounds[0], level=level, method=self.method)

    @property
    def method(self) -> str:
        """What the bounds are of, in words."""
        return f"of these {self.units:,.0f} items alone, drawn without replacement"

    def _p(self, margin: float, *, negated: bool) -> float:
        contrast = self.columns.contrast(*self.weights)
        contrast = contrast.negated() if negated else contrast
        sizes = contrast.units + contrast.errored
        if margin != margin or not contrast.finite or not sizes.size:
            return 1.0
        worst = contrast.sums + np.where(contrast.errored > 0, contrast.errored * contrast.high, 0.0)
        evaluated, total = contrast.total(sizes), contrast.total(worst)
        # exactly the margin is neither inside it nor outside, and rounding must not make it so
        reached = margin * self.units - ROUNDING * self.units
        if evaluated >= self.units - ROUNDING:
            return 0.0 if total < reached else 1.0
        # so much would be reached even if every item to come were the worst: nothing is left to chance
        if total + (self.units - evaluated) * contrast.high < reached:
            return 0.0
        if not self.early:
            return 1.0
        log_wealth = self._log_wealth(margin, contrast.high, sizes, worst, contrast.counts)
        return float(np.exp(-max(0.0, log_wealth)))

    def _log_wealth(self, margin: float, high: float, sizes: Array, worst: Array, counts: Array) -> float:
        shares, blocks = bets(EAGER), self.columns.blocks
        log_wealth = np.zeros(len(shares))
        done, lost = 0.0, 0.0
        for block in np.unique(blocks):
            rows = blocks == block
            still = (margin * self.units - lost) / (self.units - done)
            least = (high - still) * float(sizes[rows].max())
            if least > 0:
                scaled = np.maximum((still * sizes[rows] - worst[rows]) / least, -1.0)
                log_wealth += np.log1p(np.outer(shares, scaled)) @ counts[rows]
            done += float(counts[rows] @ sizes[rows])
            lost += float(counts[rows] @ worst[rows])
        return float(np.logaddexp.reduce(log_wealth)) - float(np.log(len(shares)))
