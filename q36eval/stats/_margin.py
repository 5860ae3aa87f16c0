"""Margin tests: is the loss significantly inside, or significantly outside, the margin of a policy?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from q36eval.records import Clusters, Counts, Direction, Estimator, Interval, Reason
from q36eval.stats._betting import EVEN, FAIL_MULTIPLES, PASS_MULTIPLES, Edge, block_bets
from q36eval.stats._contrast import LARGEST, Array, Columns, columns_of
from q36eval.stats._inference import MeanInference
from q36eval.stats._pairs import PairedProportions, not_exact, pairs_of
from q36eval.stats._proportion import ShareBeyond
from q36eval.stats._quantile import QuantileInference
from q36eval.stats._ratio import RatioInference
from q36eval.stats._scheduled import (
    DEFAULT_SHARES,
    METHOD,
    LookShares,
    ScheduledEvidence,
    ScheduledMean,
    planned_evidence,
)
from q36eval.stats._summary import DEFAULT_LEVEL, summarize

MarginKind = Literal["max_value", "max_increase", "min_recovery", "min_retention", "max_count", "max_share"]

MAX_ERRORED_SHARE = 0.01
"""Above this share of errored units nothing is judged: the missing units could have any answer."""

MAX_UNREADABLE_SHARE = 0.02
"""Above this share of items with an unreadable answer nothing is judged: the checker is faulty, or the task is
undecidable. Below it each is imputed at its worst for a PASS and at its best for a FAIL."""

ESTIMATORS_OF_KIND: dict[MarginKind, tuple[Estimator, ...]] = {
    "max_value": ("mean", "quantile", "maximum"),
    "max_increase": ("paired_mean", "paired_proportions"),
    "min_recovery": ("paired_mean", "ratio"),
    "min_retention": ("perplexity",),
    "max_count": ("census",),
    "max_share": ("maximum",),
}

_UNBOUNDED: tuple[Estimator, ...] = ("mean", "paired_mean", "perplexity", "ratio")
"""One unit of these can outweigh all others, unless its value is bounded; a unit of an order statistic cannot."""

LARGEST_RECOVERY = 16.0
RECOVERY_BISECTION_STEPS = 40


class Tests(Protocol):
    """One-sided tests of a mean and its interval."""

    @property
    def mean(self) -> float: ...

    def p_at_least(self, margin: float) -> float: ...

    def p_at_most(self, margin: float) -> float: ...

    def interval(self, level: float) -> Interval: ...


class MarginLike(Protocol):
    """The required fields of a margin: its kind and its value."""

    @property
    def kind(self) -> MarginKind: ...

    @property
    def value(self) -> float: ...


class Limit(NamedTuple):
    """A margin alone; a policy's has a source, too."""

    kind: MarginKind
    value: float


@dataclass(frozen=True)
class MarginTest:
    """The result of one margin test.

    `p_pass` tests H0: loss >= limit, `p_fail` tests H0: loss <= limit; both are 1.0 without usable evidence. `loss`,
    `loss_interval` and `limit` are in the unit of the loss (`loss_limit`). `not_measured` is a reason for no result.
    """

    p_pass: float
    p_fail: float
    loss: float
    loss_interval: Interval
    limit: float
    not_measured: Reason | None = None


def loss_limit(margin: MarginLike) -> float:
    """The margin as a limit on the loss.

    `max_value`, `max_increase`, `max_count`, `max_share`: as given. `min_recovery` rho: 1 - rho, for the loss
    1 - branch/reference.
    `min_retention` r: log(1/r), for the loss log(ppl_branch/ppl_reference) in nats/token.
    """
    if margin.kind == "min_recovery":
        return 1.0 - margin.value
    if margin.kind == "min_retention":
        return math.log(1.0 / margin.value) if margin.value > 0 else math.inf
    return margin.value


def margin_test(
    clusters: Clusters,
    estimator: Estimator,
    margin: MarginLike,
    *,
    direction: Direction = Direction.LOWER_IS_BETTER,
    level: float = DEFAULT_LEVEL,
    shares: LookShares = DEFAULT_SHARES,
) -> MarginTest:
    """Test the loss of `clusters` against `margin`; `level` only sets the width of `loss_interval`.

    `shares` divides the error rate among the looks at evidence laid out in blocks.

    `direction` affects only `max_increase`: the loss is branch - reference if lower is better, else the reverse.
    Errored units count at their worst for `p_pass` and at their best for `p_fail`; above 1 % nothing is judged, except
    that faults already counted beyond a `max_count` stay proven.

    Raises:
        ValueError: the margin kind does not suit the estimator or its direction, or the clusters have no reference.
    """
    _check_kind(estimator, margin, direction)
    reason = why_not_measured(clusters, estimator)
    faults_counted = margin.kind == "max_count" and sum(clusters.branch) > margin.value
    if reason is not None and not faults_counted:
        nothing = Interval(lower=math.nan, upper=math.nan, level=level, method="none")
        return MarginTest(1.0, 1.0, math.nan, nothing, loss_limit(margin), reason)
    if margin.kind == "max_count":
        return _census_test(clusters, margin, level)
    if margin.kind == "max_share":
        return _share_test(clusters, estimator, margin, level)
    if estimator == "ratio":
        return _ratio_test(clusters, margin, level)
    if margin.kind == "min_recovery":
        return _recovery_test(clusters, margin, level, shares)
    if estimator == "paired_proportions":
        return _proportions_test(clusters, margin, direction, level, shares)
    if estimator in ("quantile", "maximum"):
        return _value_test(clusters, estimator, margin, level)
    return _mean_test(clusters, margin, direction, level, shares)


def why_not_measured(clusters: Clusters, estimator: Estimator) -> Reason | None:
    """Why these clusters cannot be judged at all; None if they can."""
    malformed = _why_malformed(clusters, estimator)
    if malformed:
        return Reason("evidence-malformed", f"its evidence cannot be: {malformed}")
    counts = clusters.counts()
    if counts.scored == 0:
        return Reason("nothing-scored", "no item was scored")
    missing = why_missing(counts, estimator)
    if missing is not None:
        return missing
    bounded = clusters.bounds is not None and all(map(math.isfinite, clusters.bounds))
    if counts.errored and (estimator == "census" or (estimator in _UNBOUNDED and not bounded)):
        unbounded = f"{_errored_words(counts, estimator)}, and nothing bounds what they would add"
        return Reason("errored-unbounded", unbounded)
    for whose, column in (("branch", clusters.branch), ("reference", clusters.reference or ())):
        if not all(abs(value) < LARGEST for value in column):
            return Reason("not-finite", f"the {whose}'s values are not finite, or beyond {LARGEST:g}")
    low, high = (-math.inf, math.inf) if clusters.bounds is None or estimator == "census" else clusters.bounds
    for column in (clusters.branch, clusters.reference or clusters.branch):
        sums = [(units, total) for units, total in zip(clusters.units, column, strict=True) if units]
        # tolerance of 1e-9 per unit for rounding
        if not all((low - 1e-9) * units <= total <= (high + 1e-9) * units for units, total in sums):
            return Reason("out-of-bounds", "values lie outside the bounds that were declared for them")
    return None


def why_missing(counts: Counts, estimator: Estimator) -> Reason | None:
    """Why too many errored or unreadable items prevent a judgement; None if they are few."""
    if counts.errored > MAX_ERRORED_SHARE * counts.total:
        return Reason("errored", f"{_errored_words(counts, estimator)}, more than {MAX_ERRORED_SHARE:.0%}")
    most = 0.0 if estimator == "census" else MAX_UNREADABLE_SHARE
    if counts.unreadable <= most * counts.total:
        return None
    unreadable = f"{counts.unreadable} of {counts.total} items have an unreadable answer, more than {most:.0%}"
    return Reason("unreadable", unreadable)


def _errored_words(counts: Counts, estimator: Estimator) -> str:
    # for counts, a doubt left unresolved because the verdict was already final is not an error
    what = "errored or were not evaluated again" if estimator == "census" else "errored"
    return f"{counts.errored} of {counts.total} items {what}"


def _why_malformed(clusters: Clusters, estimator: Estimator) -> str:
    """A description of the impossible values in a measurement; empty if valid."""
    counted = (clusters.units, clusters.errored, clusters.unreadable or ())
    values = (clusters.branch, *([] if clusters.reference is None else [clusters.reference]))
    if any(count < 0 for column in counted for count in column):
        return "a cluster holds fewer than no items"
    if not all(weight > 0 and math.isfinite(weight) for weight in clusters.weights or ()):
        return "a cluster's weight is no positive number"
    if any(value and not units for column in values for value, units in zip(column, clusters.units, strict=True)):
        return "a cluster without a scored item has a value"
    if clusters.names is not None and len({*clusters.names}) < len(clusters.names):
        return "two clusters have one name"
    counts = zip(clusters.branch, clusters.units, strict=True) if estimator == "census" else ()
    if any(value < 0 or value % 1 or value > units for value, units in counts if math.isfinite(value)):
        return "a count is no whole number of what was evaluated"
    return ""


def _check_kind(estimator: Estimator, margin: MarginLike, direction: Direction) -> None:
    expected = ESTIMATORS_OF_KIND[margin.kind]
    if estimator not in expected:
        raise ValueError(f"a {margin.kind} margin judges a {' or '.join(expected)} measurement, not a {estimator} one")
    if margin.kind == "max_value" and direction is Direction.HIGHER_IS_BETTER:
        raise ValueError("a max_value margin judges a value of which lower is better")
    if margin.kind == "min_recovery" and direction is Direction.LOWER_IS_BETTER:
        raise ValueError("a min_recovery margin judges a value of which higher is better")


def _census_test(clusters: Clusters, margin: MarginLike, level: float) -> MarginTest:
    """Exact: the census is complete, except that each errored unit could be one more."""
    count = float(sum(clusters.branch))
    worst = math.inf if sum(clusters.errored) else count
    interval = Interval(lower=count, upper=worst, level=level, method="census")
    return MarginTest(
        0.0 if worst <= margin.value else 1.0, 0.0 if count > margin.value else 1.0, count, interval, margin.value
    )


def _share_test(clusters: Clusters, estimator: Estimator, margin: MarginLike, level: float) -> MarginTest:
    """Exact: the number of clusters beyond the threshold in the margin."""
    beyond = getattr(margin, "beyond", None)
    if beyond is None:
        raise ValueError("a max_share margin names no threshold that a cluster may lie beyond")
    beyond_share = ShareBeyond(clusters, beyond)
    p_pass, p_fail = beyond_share.p_at_least(margin.value), beyond_share.p_at_most(margin.value)
    return MarginTest(p_pass, p_fail, beyond_share.share, beyond_share.interval(level), margin.value)


def _value_test(clusters: Clusters, estimator: Estimator, margin: MarginLike, level: float) -> MarginTest:
    """Whether a value other than a plain mean lies inside `max_value`, by its own tests."""
    value, _, _, interval = summarize(clusters, estimator, level)
    limit = margin.value
    p_pass, p_fail = 1.0, 1.0
    if estimator == "maximum":
        # one unit beyond the margin proves a larger maximum; seeing none proves nothing about the others
        p_fail = 0.0 if value > limit else 1.0
    else:
        quantile = QuantileInference(clusters)
        p_pass, p_fail = quantile.p_at_least(limit), quantile.p_at_most(limit)
    return MarginTest(p_pass, p_fail, value, interval, limit)


def _mean_test(
    clusters: Clusters, margin: MarginLike, direction: Direction, level: float, shares: LookShares
) -> MarginTest:
    weights = {"max_value": (1.0, 0.0), "min_retention": (1.0, -1.0), "max_increase": (1.0, -1.0)}[margin.kind]
    sign = -1.0 if margin.kind == "max_increase" and direction is Direction.HIGHER_IS_BETTER else 1.0
    limit = loss_limit(margin)
    scheduled = margin.kind == "max_increase" and planned_evidence(clusters)
    evidence = ScheduledEvidence(clusters) if scheduled else None
    columns = columns_of(clusters) if evidence is None else evidence.bet_on
    edge = Edge(limit * (columns.units + columns.errored), limit)
    below, above = _planned(columns, edge) if margin.kind == "max_increase" else (None, None)
    signed = (sign * weights[0], sign * weights[1])
    tests: Tests
    if evidence is not None:
        tests = ScheduledMean(evidence, signed, limit, shares, below, above)
    else:
        tests = MeanInference(columns.contrast(*signed), EVEN, planned_below=below, planned_above=above)
    return MarginTest(tests.p_at_least(limit), tests.p_at_most(limit), tests.mean, tests.interval(level), limit)


def _proportions_test(
    clusters: Clusters, margin: MarginLike, direction: Direction, level: float, shares: LookShares
) -> MarginTest:
    """Tested exactly, or as an ordinary paired mean if the items do not allow an exact test."""
    pairs = pairs_of(clusters)
    if not isinstance(pairs, PairedProportions):
        test = _mean_test(clusters, margin, direction, level, shares)
        return replace(test, loss_interval=not_exact(test.loss_interval, pairs))
    losses = pairs if direction is Direction.LOWER_IS_BETTER else pairs.negated()
    limit = loss_limit(margin)
    return MarginTest(losses.p_at_least(limit), losses.p_at_most(limit), losses.mean, losses.interval(level), limit)


def _ratio_test(clusters: Clusters, margin: MarginLike, level: float) -> MarginTest:
    """Recovery branch/reference >= rho of unbounded values."""
    ratio = RatioInference.of(clusters)
    bounds = ratio.interval(level)
    loss = bounds.model_copy(update={"lower": 1.0 - bounds.upper, "upper": 1.0 - bounds.lower})
    undefined = Reason("recovery-undefined", "the reference's mean is not positive, so recovery is undefined")
    reason = undefined if math.isnan(ratio.ratio) else None
    p_pass, p_fail = ratio.p_at_most(margin.value), ratio.p_at_least(margin.value)
    return MarginTest(p_pass, p_fail, 1.0 - ratio.ratio, loss, loss_limit(margin), reason)


def _planned(columns: Columns, edge: Edge) -> tuple[Array | None, Array | None]:
    """Bets block by block for a loss below the margin, and above it."""
    return block_bets(columns, edge, PASS_MULTIPLES), block_bets(columns, edge, FAIL_MULTIPLES)


def _recovery_test(clusters: Clusters, margin: MarginLike, level: float, shares: LookShares) -> MarginTest:
    """Recovery branch/reference >= rho, tested as the mean of rho * reference - branch <= 0."""
    columns = columns_of(clusters)
    reference_total = 0.0 if columns.reference is None else float(columns.counts @ columns.reference)
    limit = loss_limit(margin)
    if clusters.bounds is None or clusters.bounds[0] < 0 or not math.isfinite(clusters.bounds[1]):
        raise ValueError("a min_recovery margin judges bounded values that are never negative")
    if reference_total <= 0:
        nothing = Interval(lower=math.nan, upper=math.nan, level=level, method="none")
        reason = Reason("recovery-undefined", "the reference scores zero, so recovery is undefined")
        return MarginTest(1.0, 1.0, math.nan, nothing, limit, reason)
    shortfall = _Shortfall(clusters, margin.value, shares)
    at_margin = shortfall.at(margin.value)
    alpha = (1.0 - level) / 2.0
    interval = Interval(
        lower=1.0 - shortfall.recovery_bound(alpha, upper=True),
        upper=1.0 - shortfall.recovery_bound(alpha, upper=False),
        level=level,
        method=shortfall.method,
    )
    loss = 1.0 - float(columns.counts @ columns.branch) / reference_total
    return MarginTest(at_margin.p_at_least(0.0), at_margin.p_at_most(0.0), loss, interval, limit)


class _Shortfall:
    """Tests on the mean of rho * reference - branch. The bets are planned at the policy's rho and reused for every
    other, so that a bound agrees with the verdict."""

    def __init__(self, clusters: Clusters, rho: float, shares: LookShares) -> None:
        self._limit, self._shares = 1.0 - rho, shares
        self._evidence = ScheduledEvidence(clusters) if planned_evidence(clusters) else None
        self._columns = columns_of(clusters) if self._evidence is None else self._evidence.bet_on
        assert self._columns.reference is not None
        assert self._columns.bounds is not None
        edge = Edge((1.0 - rho) * self._columns.reference, (1.0 - rho) * self._columns.bounds[1])
        self._below, self._above = _planned(self._columns, edge)

    @property
    def method(self) -> str:
        """The method of the bounds."""
        return "betting" if self._evidence is None else METHOD

    def at(self, rho: float) -> Tests:
        """The inference at a recovery of `rho`."""
        if self._evidence is not None:
            weights, bets = (-1.0, rho), (self._below, self._above)
            # a recovery loses a share of the items that the reference answers right, not of all items
            limit, loss = (each * self._evidence.right_share for each in (self._limit, 1.0 - rho))
            return ScheduledMean(self._evidence, weights, limit, self._shares, *bets, loss=loss)
        contrast = self._columns.contrast(-1.0, rho)
        return MeanInference(contrast, EVEN, planned_below=self._below, planned_above=self._above)

    def recovery_bound(self, alpha: float, *, upper: bool) -> float:
        """One-sided confidence bound on branch/reference at 1 - alpha, by bisection over rho."""
        low, high = 0.0, LARGEST_RECOVERY
        for _ in range(RECOVERY_BISECTION_STEPS):
            rho = 0.5 * (low + high)
            if upper:
                low, high = (low, rho) if self.at(rho).p_at_most(0.0) <= alpha else (rho, high)
            else:
                low, high = (rho, high) if self.at(rho).p_at_least(0.0) <= alpha else (low, rho)
        if upper:
            return high if high < LARGEST_RECOVERY else math.inf
        return low


def as_expected(units: Sequence[int], score: float) -> Clusters:
    """Clusters of `units` items on which branch and reference both have the share `score` right, spread evenly."""
    right = np.diff(np.floor(score * np.cumsum([0, *units]) + 0.5))
    sums = tuple(float(value) for value in np.minimum(right, units))
    return Clusters(units=tuple(units), branch=sums, reference=sums, errored=(0,) * len(units), bounds=(0.0, 1.0))


def can_show(
    identical: Clusters,
    margin: MarginLike,
    *,
    confidence: float,
    direction: Direction,
    estimator: Estimator = "paired_mean",
) -> bool:
    """Whether a branch with exactly the reference's answers would PASS: if not, no branch can.

    `identical` are the clusters of the reference compared with itself, or their expectation (`as_expected`). Exact.
    """
    test = margin_test(identical, estimator, margin, direction=direction, level=2 * confidence - 1)
    return test.p_pass <= 1.0 - confidence
