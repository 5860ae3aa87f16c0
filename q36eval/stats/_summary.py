"""From clusters to the figures of a measurement."""

import math

from q36eval.records import Clusters, Estimator, Interval
from q36eval.stats._contrast import finite_bounds, linear_contrast
from q36eval.stats._inference import MeanInference
from q36eval.stats._pairs import PairedProportions, not_exact, pairs_of
from q36eval.stats._quantile import QuantileInference
from q36eval.stats._ratio import RatioInference
from q36eval.stats._scheduled import ScheduledEvidence, ScheduledMean, planned_evidence

DEFAULT_LEVEL = 0.95


def summarize(
    clusters: Clusters, estimator: Estimator, level: float = DEFAULT_LEVEL
) -> tuple[float, float | None, float, Interval]:
    """`(value, reference_value, effect, effect_interval)` of a measurement, as `records.Measurement` defines them.

    Values are NaN if nothing was scored or a value is not finite. Each bound of the interval holds one-sided at
    `(1 + level) / 2`: by betting when `clusters.bounds` are finite, by a clustered bootstrap-t otherwise (infinite
    bounds with fewer than 8 clusters or any errored unit); that of `paired_proportions` is exact. Errored units widen
    the interval of a bounded value. The value of a quantile is the smallest threshold of its tail exceeded by at most
    that share of the units.

    Raises:
        ValueError: a paired value without a reference, a quantile without its tail, or `derived`, which does not
            summarize clusters.
    """
    return *point_figures(clusters, estimator), _interval(clusters, estimator, level)


def point_figures(clusters: Clusters, estimator: Estimator) -> tuple[float, float | None, float]:
    """`summarize` without the interval: cheap enough to compare a record with its own evidence."""
    if estimator == "derived":
        raise ValueError("a derived figure has no clusters of its own to summarise")
    if estimator in ("census", "quantile", "maximum"):
        value = _single_value(clusters, estimator)
        return value, None, value
    branch_mean = linear_contrast(clusters, 1.0).mean
    if estimator == "mean":
        return branch_mean, None, branch_mean
    reference_mean, difference = (linear_contrast(clusters, *each).mean for each in ((0.0, 1.0), (1.0, -1.0)))
    if estimator == "ratio":
        return branch_mean, reference_mean, RatioInference.of(clusters).ratio
    if estimator == "perplexity":
        return _exp(branch_mean), _exp(reference_mean), _exp(difference)
    return branch_mean, reference_mean, difference


def _interval(clusters: Clusters, estimator: Estimator, level: float) -> Interval:
    if estimator == "quantile":
        return QuantileInference(clusters).interval(level)
    if estimator in ("census", "maximum"):
        value = _single_value(clusters, estimator)
        upper, method = value, "census"
        if estimator == "maximum":
            upper = math.inf if clusters.bounds is None else clusters.bounds[1]
            method = "none above: no sample bounds the greatest"
        return Interval(lower=value, upper=upper, level=level, method=method)
    if estimator == "mean":
        interval = MeanInference(linear_contrast(clusters, 1.0)).interval(level)
        if -math.inf < interval.lower < 0 <= min(clusters.branch):  # the mean of a divergence is not negative either
            interval = interval.model_copy(update={"lower": 0.0})
        return interval
    if estimator == "ratio":
        return RatioInference.of(clusters).interval(level)
    interval = _difference_interval(clusters, estimator, level)
    if estimator != "perplexity":
        return interval
    return Interval(lower=_exp(interval.lower), upper=_exp(interval.upper), level=level, method=interval.method)


def _difference_interval(clusters: Clusters, estimator: Estimator, level: float) -> Interval:
    """For branch - reference: exact if requested and valid, else by the bounds of a value."""
    pairs = pairs_of(clusters) if estimator == "paired_proportions" else None
    if isinstance(pairs, PairedProportions):
        return pairs.interval(level)
    if planned_evidence(clusters) and finite_bounds(clusters.bounds):
        return ScheduledMean(ScheduledEvidence(clusters), (1.0, -1.0), 0.0).interval(level)
    return not_exact(MeanInference(linear_contrast(clusters, 1.0, -1.0)).interval(level), pairs)


def _single_value(clusters: Clusters, estimator: Estimator) -> float:
    """A count, the largest value, or the smallest threshold that at most 1 - quantile of the units exceed.

    The threshold is infinite if none qualifies.
    """
    if estimator == "census":
        return float(sum(clusters.branch))
    if estimator == "maximum":
        return max((v for v, units in zip(clusters.branch, clusters.units, strict=True) if units), default=math.nan)
    if clusters.tail is None:
        raise ValueError("a quantile needs clusters that hold its tail")
    total = sum(clusters.units)
    allowed = (1.0 - clusters.tail.quantile) * total + 1e-9
    pairs = zip(clusters.tail.thresholds, clusters.tail.above, strict=True)
    return next((t for t, above in pairs if sum(above) <= allowed), math.inf) if total else math.nan


def _exp(nats: float) -> float:
    """exp that overflows to infinity instead of raising."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
