"""The difference of two paired rates: exact if items are pairs of 0 and 1; otherwise the reason.

Of n pairs, `worse` fail on the branch alone and `better` on the reference alone; their rates p_worse and p_better are
unknown, and the loss is p_worse - p_better. No large-sample or normal approximation is used: the p-value of "loss >=
margin" is the largest probability that such rates give to an outcome at least as favourable as the one seen, in one
fixed order: Buehler's bounds (J. Amer. Statist. Assoc. 52 (1957), 482-493), for paired rates ordered by the score's
limit (Lloyd & Moldovan, Statist. Med. 26 (2007), 3369-3381). Because the order is fixed, the p-value falls with the
margin and inverting it is exact.

The order is by the upper limit on the difference from the score statistic of an outcome (Tango, Statist. Med. 17
(1998), 891-908), which rises with `worse` and falls with `better`. Only the order is used: its normal approximation
decides nothing.

The region of outcomes grows with `better` and shrinks with `worse`, so the largest probability is at a loss of exactly
the margin. There it is maximised over the share of pairs that differ, but only up to p_worse's own upper bound at 1 -
NUISANCE, and NUISANCE is added (Berger & Boos, J. Amer. Statist. Assoc. 89 (1994), 1012-1016): this excludes, for
example, that all pairs differ if none of 200 did. That bound depends on `worse` alone, so a p-value still never falls
with one more `worse`, nor rises with one more `better`.

The test is exact for independent draws from one population, such as a family. Strata pooled in fixed numbers have
separate rates: mostly their outcomes vary less, and the error rate is below its level; but if all differences are in
few items it may be higher. At a level of 2.5 %, the maximum found by a search is 2.5 % while a quarter of such a
stratum differs, 2.7 % for half of it, 3.2 % for three quarters, and 6.3 % if four items always differ, either way
(benchmarks/README.md). Betting is valid in all these cases.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, gammaln, xlog1py, xlogy

from q36eval.records import Clusters, Interval
from q36eval.stats._contrast import Array

NUISANCE = 1e-4

GRID_STEP = 0.05
"""Grid step in the root of the expected count to maximise over, in which a probability is smooth; used until ..."""

GRID_GROWTH = 0.02
"""... where this share of it is more. Halving both moves no p-value by more than 1 in 1,000."""

WINDOW = 7.5
"""Counts further from their mean than this many standard deviations have a probability below 1e-12."""

EXACT_STEPS = 32


@dataclass(frozen=True)
class ExactDifference:
    """Tests and an upper bound of p_worse - p_better from n pairs; swap the counts for a lower bound.

    Raises:
        ValueError: impossible counts, or no pair.
    """

    worse: int
    better: int
    n: int

    def __post_init__(self) -> None:
        if min(self.worse, self.better) < 0 or not 0 < self.n >= self.worse + self.better:
            raise ValueError(f"{self.worse} worse and {self.better} better are no pairs of {self.n}")

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: p_worse - p_better >= `margin`. At least NUISANCE; 1 if the mean does not contradict H0."""
        if self.worse - self.better >= margin * self.n:
            return 1.0
        return min(1.0, self._greatest(margin) + NUISANCE)

    def upper_bound(self, alpha: float) -> float:
        """The smallest margin with a p-value of at most `alpha`, to 5e-10; 1 if none exists."""
        low, high = (self.worse - self.better) / self.n, 1.0
        for _ in range(EXACT_STEPS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.p_at_least(middle) <= alpha else (middle, high)
        return high

    def _greatest(self, margin: float) -> float:
        """The largest probability of the region at rates that differ by `margin`; zero if no such rates exist.

        The grid is in p_better if the margin is positive, else in p_worse, so a larger margin moves both rates only
        towards a less likely region: on a fixed grid the maximum then falls, too.
        """
        end = min(self._most_p_worse - max(margin, 0.0), (1.0 - abs(margin)) / 2.0)
        if end < 0.0:
            return 0.0
        least = np.append(self._grid[self._grid < end], end)
        p_worse, p_better = least + max(margin, 0.0), least + max(-margin, 0.0)
        return float(self._probabilities(p_worse, p_better).max())

    def _probabilities(self, p_worse: Array, p_better: Array) -> Array:
        """P(outcome in the region) [G]: `better` is binomial, and so is `worse` among the other pairs."""
        mean, spread = self.n * p_better, np.sqrt(self.n * p_better * (1.0 - p_better))
        first = np.maximum(0.0, np.floor(mean - WINDOW * spread - 10)).astype(np.int64)
        last = np.minimum(self.n, np.ceil(mean + WINDOW * spread + 10)).astype(np.int64)
        sizes = last - first + 1
        starts = np.cumsum(sizes) - sizes
        row = np.repeat(np.arange(sizes.size), sizes)
        better = np.arange(row.size) - (starts - first)[row]
        others, most = self.n - better, self._most_worse[better]
        log_weights = self._log_choose[better] + xlogy(better, p_better[row]) + xlog1py(others, -p_better[row])
        # the share of `worse` among the others; rounding must not push it above 1
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
        return float(betaincinv(self.worse + 1, self.n - self.worse, 1.0 - NUISANCE)) if self.worse < self.n else 1.0

    @cached_property
    def _log_choose(self) -> Array:
        counts = np.arange(self.n + 1, dtype=np.float64)
        logs: Array = gammaln(self.n + 1.0) - gammaln(counts + 1.0) - gammaln(self.n - counts + 1.0)
        return logs

    @cached_property
    def _grid(self) -> Array:
        roots = [0.0]
        while roots[-1] ** 2 < self.n / 2:
            roots.append(roots[-1] + max(GRID_STEP, GRID_GROWTH * roots[-1]))
        return np.array(roots) ** 2 / self.n


METHOD = "exact (unconditional)"


@dataclass(frozen=True)
class PairedProportions:
    """Tests and bounds on the rate of `worse` less that of `better`, over `scored` pairs, plus `errored` ones.

    Errored pairs all count as worse in a test for a small difference, and as better in a test for a large one: their
    extreme possible answers.
    """

    worse: int
    better: int
    scored: int
    errored: int = 0

    @property
    def mean(self) -> float:
        """The difference among scored pairs; NaN without scored pairs."""
        return (self.worse - self.better) / self.scored if self.scored else float("nan")

    def negated(self) -> "PairedProportions":
        """The pairs with both sides swapped."""
        return PairedProportions(self.better, self.worse, self.scored, self.errored)

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: difference >= margin. 1.0 if nothing was scored."""
        return self._exact.p_at_least(margin) if self.scored and margin == margin else 1.0

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: difference <= margin. 1.0 if nothing was scored."""
        return self.negated().p_at_least(-margin)

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2."""
        if not self.scored:
            nan = float("nan")
            return Interval(lower=nan, upper=nan, level=level, method="none: no finite evidence")
        alpha = (1.0 - level) / 2.0
        lower, upper = -self.negated()._exact.upper_bound(alpha), self._exact.upper_bound(alpha)
        return Interval(lower=lower, upper=upper, level=level, method=METHOD)

    @cached_property
    def _exact(self) -> ExactDifference:
        return ExactDifference(self.worse + self.errored, self.better, self.scored + self.errored)


def pairs_of(clusters: Clusters) -> PairedProportions | str:
    """The pairs in which a failure is 1, or why an exact test would be invalid for these clusters.

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
    """An interval used in place of an exact one, with the reason in its method."""
    if why is None or interval.method.startswith("none"):
        return interval
    return interval.model_copy(update={"method": f"{interval.method}, not exact: {why}"})


ORDERING_Z = 1.959963984540054
"""Outcomes are always ordered by 97.5 % limits, whatever the level of the test, so that levels are nested."""

TIES = 1e-9
"""Statistics that differ by less are equal: an outcome left out by rounding would make a bound too short."""

SCORE_STEPS = 50


def score_statistic(worse: Array | float, better: Array | float, n: int, difference: float) -> Array:
    """Tango's statistic of p_worse - p_better = `difference`; its variance uses the most likely p_better.

    Minus or plus infinity if the outcome is impossible under the hypothesis.
    """
    worse, better = np.asarray(worse, dtype=np.float64), np.asarray(better, dtype=np.float64)
    linear = (2 * n - worse + better) * difference - worse - better
    constant = -better * difference * (1.0 - difference)
    p_better = (np.sqrt(np.maximum(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * p_better + difference * (1.0 - difference))
    excess = worse - better - n * difference
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic: Array = np.where(excess == 0, 0.0, excess / np.sqrt(np.maximum(variance, 0.0)))
    return statistic


def most_worse(worse: int, better: int, n: int) -> NDArray[np.int64]:
    """For 0 to n `better` pairs [n + 1], the largest `worse` whose limit does not exceed that of the outcome.

    -1 if not even 0. It falls only at the maximum possible count: one more `better` keeps an outcome in the region
    (Barnard's convexity; Sidik, Statist. Med. 22 (2003), 265-278, shows it for this statistic).
    """
    betters = np.arange(n + 1, dtype=np.float64)
    room = n - np.arange(n + 1)
    limit = _score_limit(worse, better, n)
    observed = float(score_statistic(worse, better, n, limit)) + TIES
    inside, outside = np.full(n + 1, -1), room + 1
    while bool((outside - inside > 1).any()):
        middle = (inside + outside) // 2
        held = (score_statistic(np.maximum(middle, 0), betters, n, limit) <= observed) | (middle < 0)
        inside, outside = np.where(held, middle, inside), np.where(held, outside, middle)
    return inside


def _score_limit(worse: int, better: int, n: int) -> float:
    """The difference at which the statistic of the outcome falls to -ORDERING_Z; 1 where it never does."""
    low, high = (worse - better) / n, 1.0
    for _ in range(SCORE_STEPS):
        middle = 0.5 * (low + high)
        if float(score_statistic(worse, better, n, middle)) <= -ORDERING_Z:
            high = middle
        else:
            low = middle
    return high
