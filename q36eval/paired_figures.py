"""Figures shown beside the judged mean of a paired comparison: recovery and the effective length."""

import math
from collections.abc import Mapping

from q36eval.records import Clusters, Direction, Interval, Record
from q36eval.stats import DEFAULT_LEVEL, Limit, margin_test


def recovery(clusters: Clusters) -> tuple[float, Interval]:
    """Branch's mean over the reference's (1 = nothing lost), and its interval.

    The interval is that of the gate's test (betting on the mean of branch - rho * reference, inverted over rho). A
    criterion over evidence with a schedule bets most on its own margin, which is not known here: the interval that it
    was judged by stands beside it, and may be somewhat shorter or longer than this. NaN where the reference scores zero
    or nothing was scored; both bounds are NaN, and the interval's method says why, where the gate would not judge.

    Raises:
        ValueError: clusters without a reference, or values that are unbounded or may be negative.
    """
    if clusters.reference is None:
        raise ValueError("a recovery needs a reference to compare with")
    reference = math.fsum(clusters.reference)
    value = math.fsum(clusters.branch) / reference if reference > 0 else math.nan
    test = margin_test(clusters, "paired_mean", Limit("min_recovery", 1.0), direction=Direction.HIGHER_IS_BETTER)
    loss = test.loss_interval
    method = loss.method if test.not_measured is None else f"none: {test.not_measured.text}"
    return value, Interval(lower=1.0 - loss.upper, upper=1.0 - loss.lower, level=DEFAULT_LEVEL, method=method)


class EffectiveLength(Record):
    """The longest length, in tokens, up to which recovery holds at every measured length; None: at not even the first.

    `by_value` asks the point estimates, `by_lower_bound` their lower bounds (then each length was shown, not just seen,
    to hold: a claim of all of them fails only where one does, so it needs no correction). `measured` are the lengths
    with a recovery, `not_measured` those without one: neither count can reach past the first missing length.
    """

    at_least: float
    by_value: int | None
    by_lower_bound: int | None
    measured: tuple[int, ...]
    not_measured: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether recovery held at the longest length, so that the true figure may lie beyond it."""
        return bool(self.measured) and self.by_value == max((*self.measured, *self.not_measured))


def effective_length(recoveries: Mapping[int, tuple[float, float]], at_least: float) -> EffectiveLength:
    """The effective length (Hsieh et al., "RULER", arXiv 2404.06654, section 4), with recovery in the score's place.

    `recoveries` are by length the value and the lower bound of its interval; NaN where it was not measured.
    """
    by_value: int | None = None
    by_lower_bound: int | None = None
    value_holds = lower_holds = True
    for length, (value, lower) in sorted(recoveries.items()):
        value_holds = value_holds and value >= at_least
        lower_holds = lower_holds and lower >= at_least
        by_value = length if value_holds else by_value
        by_lower_bound = length if lower_holds else by_lower_bound
    missing = tuple(sorted(length for length, (value, _) in recoveries.items() if math.isnan(value)))
    return EffectiveLength(
        at_least=at_least,
        by_value=by_value,
        by_lower_bound=by_lower_bound,
        measured=tuple(sorted(set(recoveries) - set(missing))),
        not_measured=missing,
    )
