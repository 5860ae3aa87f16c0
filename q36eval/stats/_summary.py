"""From clusters to the figures of a measurement."""

import math

import numpy as np

from q36eval.records import Clusters, Estimator, Interval
from q36eval.stats._contrast import linear_contrast
from q36eval.stats._inference import MeanInference

DEFAULT_LEVEL = 0.95


def summarize(
    clusters: Clusters, estimator: Estimator, level: float = DEFAULT_LEVEL
) -> tuple[float, float | None, float, Interval]:
    """`(value, reference_value, effect, effect_interval)` of a measurement, as `records.Measurement` defines them.

    Values are NaN when nothing was scored or a value is not finite. Each bound of the interval holds one-sided at
    `(1 + level) / 2`: by betting when `clusters.bounds` are finite, by a clustered bootstrap-t otherwise (infinite
    bounds with fewer than 8 clusters or any errored unit). Errored units widen the interval of a bounded value.

    Raises:
        ValueError: `paired_mean` or `perplexity` without a reference.
    """
    if estimator == "census":
        count = float(np.sum(clusters.branch)) if clusters.branch else 0.0
        return count, None, count, Interval(lower=count, upper=count, level=level, method="census")
    branch_mean = linear_contrast(clusters, 1.0).mean
    if estimator == "mean":
        return branch_mean, None, branch_mean, MeanInference(linear_contrast(clusters, 1.0)).interval(level)
    difference = linear_contrast(clusters, 1.0, -1.0)
    reference_mean = linear_contrast(clusters, 0.0, 1.0).mean
    interval = MeanInference(difference).interval(level)
    if estimator == "paired_mean":
        return branch_mean, reference_mean, difference.mean, interval
    ratio_interval = Interval(
        lower=_exp(interval.lower), upper=_exp(interval.upper), level=level, method=interval.method
    )
    return _exp(branch_mean), _exp(reference_mean), _exp(difference.mean), ratio_interval


def _exp(nats: float) -> float:
    """exp that overflows to infinity instead of raising."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
