"""Tests of a bounded mean of evidence laid out in blocks: bets at every look, and a planned last look.

Betting pays for unlimited looks that are unused at the end: a branch without loss stays INCONCLUSIVE once in seven
times. So part of the error rate pays for the looks, and the rest for one look at the planned end by the
empirical-likelihood test (`_likelihood`); if items are drawn by the reference's margin, part of it pays for one more
look at the end of these draws. Each is a valid test at its share, so the smallest of p / share is valid at the whole
rate (Bonferroni), and Holm may use it like any p-value. The set of looks depends on the plan alone.
"""

from dataclasses import dataclass
from functools import cached_property

from q36eval.records import Clusters, Interval, Schedule
from q36eval.stats import _betting, _likelihood
from q36eval.stats._contrast import Array, Columns, Contrast, columns_of, columns_of_bets
from q36eval.stats._likelihood import LEAST_EXPECTED, effective_clusters
from q36eval.stats._pairs import PairedProportions, pairs_of

METHOD = "bets and a last look"
BISECTION_STEPS = 50


@dataclass(frozen=True)
class LookShares:
    """The division of a criterion's error rate: `bets` for all looks, `midway` for the end of draws by margin; the
    planned end gets the rest, including unused shares."""

    bets: float = 0.2
    midway: float = 0.4

    def __post_init__(self) -> None:
        if not (0.0 < self.bets <= 1.0 and self.midway >= 0.0 and self.bets + self.midway <= 1.0):
            raise ValueError("shares of an error rate lie in [0, 1] and add up to at most 1, and bets have one")

    @property
    def last(self) -> float:
        """The remaining share, for the planned end."""
        return max(0.0, 1.0 - self.bets - self.midway)


DEFAULT_SHARES = LookShares()


def planned_evidence(clusters: Clusters) -> bool:
    """Whether these clusters record their planned end, so that a look may be taken there."""
    return clusters.schedule is not None and bool(clusters.schedule.planned)


@dataclass(frozen=True)
class ScheduledEvidence:
    """Clusters with a planned end, as every look sees them; built once for all tested margins.

    Raises:
        ValueError: the clusters have no planned end.
    """

    clusters: Clusters

    def __post_init__(self) -> None:
        if not planned_evidence(self.clusters):
            raise ValueError("a planned look needs evidence that says what was planned")

    @property
    def schedule(self) -> Schedule:
        """The schedule of the clusters."""
        assert self.clusters.schedule is not None
        return self.clusters.schedule

    @cached_property
    def whole(self) -> Columns:
        """All rows, each unit with its cluster's weight."""
        return columns_of(self.clusters)

    @cached_property
    def bet_on(self) -> Columns:
        """The rows on which bets are placed."""
        return columns_of_bets(self.clusters)

    @cached_property
    def effective(self) -> tuple[float, float]:
        """The numbers of equal clusters equivalent to the planned ones: of the draws by margin, and of all."""
        counts = []
        for plan in (self.schedule.first, self.schedule.planned):
            each = list((plan or {}).values())
            counts.append(effective_clusters(sum(p.units for p in each), sum(p.squares for p in each)))
        return counts[0], counts[1]

    @cached_property
    def right_share(self) -> float:
        """The share of all planned units that the reference answers right, by its first answers; 1 if unknown."""
        plans = list((self.schedule.planned or {}).values())
        known = [plan.right for plan in plans if plan.right is not None]
        return sum(known) / sum(plan.units for plan in plans) if len(known) == len(plans) else 1.0

    @cached_property
    def complete(self) -> bool:
        """Whether everything planned was evaluated."""
        return len(self.clusters.units) == sum(each.clusters for each in (self.schedule.planned or {}).values())

    @cached_property
    def first_complete(self) -> bool:
        """Whether all draws by margin were evaluated."""
        last = self.schedule.last_bet
        if last is None:
            return False
        planned = (self.schedule.first or {}).values()
        return sum(block <= last for block in self.schedule.blocks) == sum(each.clusters for each in planned)

    @cached_property
    def single(self) -> bool:
        """Whether every planned cluster is one item."""
        return all(each.clusters == each.units == each.squares for each in (self.schedule.planned or {}).values())

    @cached_property
    def pairs(self) -> PairedProportions | str:
        """All evaluated items as pairs of right and wrong, or why they are not such pairs."""
        return pairs_of(self.clusters.model_copy(update={"schedule": None}))


@dataclass(frozen=True)
class ScheduledMean:
    """Tests on the mean of z = branch_weight * branch + reference_weight * reference over laid-out clusters.

    `limit` is the policy's margin as a loss per unit: together with the plan it determines the looks, whatever margin
    is tested. `planned_below` and `planned_above` are the bets [K, R] over the rows with bets. `loss` is the tested
    loss per unit if it differs from the margin: for a recovery rho, 1 - rho.
    """

    evidence: ScheduledEvidence
    weights: tuple[float, float]
    limit: float
    shares: LookShares = DEFAULT_SHARES
    planned_below: Array | None = None
    planned_above: Array | None = None
    loss: float | None = None

    def p_at_least(self, margin: float) -> float:
        """p-value of H0: mean >= margin. Never contradicts the plain mean; 1.0 for non-finite evidence."""
        if margin != margin or not self._whole.finite or _worst_mean(self._whole) >= margin:
            return 1.0
        return self._p(margin, self.planned_below, _betting.EAGER, negated=False)

    def p_at_most(self, margin: float) -> float:
        """p-value of H0: mean <= margin."""
        if margin != margin or not self._whole.finite or _worst_mean(self._whole.negated()) >= -margin:
            return 1.0
        return self._p(-margin, self.planned_above, _betting.EVEN, negated=True)

    def interval(self, level: float) -> Interval:
        """Bounds that each hold one-sided at (1 + level) / 2; they agree with the p-values."""
        alpha = (1.0 - level) / 2.0
        contrast = self._whole
        if not contrast.finite or contrast.units.sum() == 0:
            return Interval(lower=float("nan"), upper=float("nan"), level=level, method="none: no finite evidence")
        low, high = contrast.low, contrast.high
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.p_at_least(middle) <= alpha else (middle, high)
        upper, low, high = high, contrast.low, contrast.high
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.p_at_most(middle) <= alpha else (low, middle)
        return Interval(lower=low, upper=upper, level=level, method=METHOD)

    @property
    def mean(self) -> float:
        """The plain mean, each unit with its cluster's weight."""
        return self._whole.mean

    def _p(self, margin: float, planned: Array | None, shape: float, *, negated: bool) -> float:
        """p-value of H0: mean >= margin; for -z if `negated`."""
        looks, (first, whole) = self._looks, self.evidence.effective
        bets = self._bet_on.negated() if negated else self._bet_on
        capped = bets.with_cut_off_at(bets.high, margin)
        p_values = [1.0, _betting.p_mean_at_least(bets.with_capped_sizes(), capped, shape, planned) / looks.bets]
        # for a smaller loss than the policy's, as in an interval, the asymptotic looks may have too little evidence
        loss = abs(margin if self.loss is None else self.loss)
        if looks.midway and self.evidence.first_complete and first * loss >= LEAST_EXPECTED:
            p_values.append(_likelihood.p_mean_at_least(bets, margin) / looks.midway)
        if looks.last and self.evidence.complete:
            if whole * self.limit < LEAST_EXPECTED:
                p_values.append(self._exact_p(margin, negated=negated) / looks.last)
            elif whole * loss >= LEAST_EXPECTED:
                contrast = self._whole.negated() if negated else self._whole
                p_values.append(_likelihood.p_mean_at_least(contrast, margin) / looks.last)
        return min(p_values)

    def _exact_p(self, margin: float, *, negated: bool) -> float:
        pairs = self.evidence.pairs
        if not isinstance(pairs, PairedProportions):
            return 1.0
        return (pairs if (self.weights[0] > 0) != negated else pairs.negated()).p_at_least(margin)

    @cached_property
    def _looks(self) -> LookShares:
        """The looks, which the plan alone determines, and the share of each."""
        first, whole = self.evidence.effective
        midway = self.shares.midway if first * self.limit >= LEAST_EXPECTED else 0.0
        # a difference of two rates, over items that are each a cluster
        exact = self.evidence.single and abs(self.weights[0]) == 1.0 and self.weights[0] == -self.weights[1]
        if whole * self.limit >= LEAST_EXPECTED or exact:
            return LookShares(self.shares.bets, midway)
        return LookShares(1.0 - midway, midway)

    @cached_property
    def _whole(self) -> Contrast:
        return self.evidence.whole.contrast(*self.weights)

    @cached_property
    def _bet_on(self) -> Contrast:
        return self.evidence.bet_on.contrast(*self.weights)


def _worst_mean(contrast: Contrast) -> float:
    """The mean of z with errored units at their worst."""
    errored = contrast.total(contrast.errored)
    total = contrast.total(contrast.units) + errored
    worst = errored * contrast.high if errored else 0.0
    return (contrast.total(contrast.sums) + worst) / total if total else float("nan")
