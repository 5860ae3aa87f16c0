"""Margins that a set of items can show, before a branch is evaluated: even an identical branch needs enough items."""

from collections.abc import Sequence

import numpy as np

from q36eval.records import Clusters, Direction, Estimator
from q36eval.stats._margin import MarginLike, margin_test


def as_expected(units: Sequence[int], score: float) -> Clusters:
    """Clusters of `units` items each of which branch and reference get the share `score` right, spread evenly."""
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
    """Whether a branch that answers everything as the reference does would PASS: if not, no branch can.

    `identical` are the clusters of the reference beside itself, or what is expected of them (`as_expected`). Exact.
    """
    test = margin_test(identical, estimator, margin, direction=direction, level=2 * confidence - 1)
    return test.p_pass <= 1.0 - confidence
