"""The difference of two paired rates, exactly: no large sample, no normal approximation.

Of n pairs, `worse` fail on the branch alone and `better` on the reference alone; their rates p_worse and p_better are
unknown, and the loss is p_worse - p_better. The p-value of "loss >= margin" is the greatest probability that such rates
give to an outcome at least as favourable as the one seen, in one fixed order (`_score`): Buehler's bounds (J. Amer.
Statist. Assoc. 52 (1957), 482-493), for paired rates ordered by the score's limit (Lloyd & Moldovan, Statist. Med. 26
(2007), 3369-3381). The order being fixed, the p-value falls with the margin and inverting it is exact.

The outcomes that count grow with `better` and shrink with `worse`, so that the greatest probability lies at a loss of
just the margin. There it is maximised over how many pairs differ at all, but only as far as p_worse reaches its own
upper bound of 1 - NUISANCE, and NUISANCE is added (Berger & Boos, J. Amer. Statist. Assoc. 89 (1994), 1012-1016): that
all pairs differ where none of 200 did is left out. That bound hangs on `worse` alone, so a p-value still never falls
with a further `worse`, nor rises with a further `better`.

This is exact for independent draws from one population, as a family's are. Strata that are pooled in fixed numbers have
rates of their own: mostly their outcomes scatter less, and the test errs less often than it may; but where all that
differs lies in few items it may err more. Where 2.5 % are allowed, the most that a search found is 2.5 % while a
quarter of such a stratum differs, 2.7 % where half of it does, 3.2 % where three quarters, and 6.3 % where four items
always differ, either way (benchmarks/README.md). Betting is valid for all of them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from q36eval.stats._contrast import Array
from q36eval.stats._score import most_worse

MOST_PAIRS = 20_000
"""So many take a second or two for an interval where two in five of them differ, a quarter of one where few do. Beyond
them the empirical-likelihood test decides, which errs as promised long before (`_likelihood`)."""

NUISANCE = 1e-4

GRID_STEP = 0.05
"""Steps in the root of the expected count that is maximised over, on whose scale a probability is smooth, up to ..."""

GRID_GROWTH = 0.02
"""... where this share of it is more. Halving both moves no p-value by more than 1 in 1,000."""

WINDOW = 7.5
"""Counts further from their mean, in standard deviations, weigh less than 1e-12."""

BISECTION_STEPS = 32


@dataclass(frozen=True)
class ExactDifference:
    """Tests and an upper bound of p_worse - p_better from n pairs; the other way round for a lower one.

    Raises:
        ValueError: counts that cannot be, or no pair.
    """

    worse: int
    better: int
    n: int

    def __post_init__(self) -> None:
        if min(self.worse, self.better) < 0 or not 0 < self.n >= self.worse + self.better:
            raise ValueError(f"{self.worse} worse and {self.better} better are no pairs of {self.n}")

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: p_worse - p_better >= `margin`. At least NUISANCE; 1 where the mean does not contradict."""
        if self.worse - self.better >= margin * self.n:
            return 1.0
        return min(1.0, self._greatest(margin) + NUISANCE)

    def upper_bound(self, alpha: float) -> float:
        """The least margin whose p-value is at most `alpha`, to 5e-10; 1 where there is none."""
        low, high = (self.worse - self.better) / self.n, 1.0
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.p_at_least(middle) <= alpha else (middle, high)
        return high

    def _greatest(self, margin: float) -> float:
        """The greatest probability of the region at rates that differ by `margin`; zero where there are none.

        In p_better where the margin is positive, else in p_worse, so that both rates only ever move the way that makes
        the region less likely when the margin rises: on a fixed grid the greatest value then falls too.
        """
        end = min(self._most_p_worse - max(margin, 0.0), (1.0 - abs(margin)) / 2.0)
        if end < 0.0:
            return 0.0
        least = np.append(self._grid[self._grid < end], end)
        p_worse, p_better = least + max(margin, 0.0), least + max(-margin, 0.0)
        return float(self._probabilities(p_worse, p_better).max())

    def _probabilities(self, p_worse: Array, p_better: Array) -> Array:
        """P(outcome in the region) [G]: `better` is binomial, and so is `worse` among the other pairs."""
        from scipy.special import betainc, xlog1py, xlogy

        mean, spread = self.n * p_better, np.sqrt(self.n * p_better * (1.0 - p_better))
        first = np.maximum(0.0, np.floor(mean - WINDOW * spread - 10)).astype(np.int64)
        last = np.minimum(self.n, np.ceil(mean + WINDOW * spread + 10)).astype(np.int64)
        sizes = last - first + 1
        starts = np.cumsum(sizes) - sizes
        row = np.repeat(np.arange(sizes.size), sizes)
        better = np.arange(row.size) - (starts - first)[row]
        others, most = self.n - better, self._most_worse[better]
        log_weights = self._log_choose[better] + xlogy(better, p_better[row]) + xlog1py(others, -p_better[row])
        # the share of the others that is worse; rounding must not carry it beyond 1
        share = np.minimum(1.0, (p_worse / np.maximum(1.0 - p_better, 1e-300))[row])
        inner = betainc(np.maximum(others - most, 1), np.maximum(most, 0) + 1, 1.0 - share)
        cumulative = np.where(most >= others, 1.0, np.where(most < 0, 0.0, inner))
        totals: Array = np.add.reduceat(np.exp(log_weights) * cumulative, starts)
        return totals

    @cached_property
    def _most_worse(self) -> NDArray[np.int64]:
        return most_worse(self.worse, self.better, self.n)

    @cached_property
    def _most_p_worse(self) -> float:
        """Clopper & Pearson's upper bound of p_worse at 1 - NUISANCE."""
        from scipy.special import betaincinv

        return float(betaincinv(self.worse + 1, self.n - self.worse, 1.0 - NUISANCE)) if self.worse < self.n else 1.0

    @cached_property
    def _log_choose(self) -> Array:
        from scipy.special import gammaln

        counts = np.arange(self.n + 1, dtype=np.float64)
        logs: Array = gammaln(self.n + 1.0) - gammaln(counts + 1.0) - gammaln(self.n - counts + 1.0)
        return logs

    @cached_property
    def _grid(self) -> Array:
        roots = [0.0]
        while roots[-1] ** 2 < self.n / 2:
            roots.append(roots[-1] + max(GRID_STEP, GRID_GROWTH * roots[-1]))
        return np.array(roots) ** 2 / self.n
