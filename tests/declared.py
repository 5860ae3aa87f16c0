"""What a probe declares before it measures is what it yields."""

from collections.abc import Mapping

from q36eval.metrics import DeclaredFigure
from q36eval.records import Measurement


def assert_declared(declared: Mapping[str, DeclaredFigure], yielded: Mapping[str, Measurement]) -> None:
    """The same keys, each with its estimator, direction and unit, and as many items as were declared, if any were."""
    assert set(yielded) == set(declared)
    for key, found in yielded.items():
        figure = declared[key]
        metric = figure.metric
        assert (metric.estimator, metric.direction, metric.unit) == (found.estimator, found.direction, found.unit), key
        assert figure.items in (None, found.counts.total), key
