"""Margins and clusters as tests write them."""

from collections.abc import Sequence
from typing import Any

from q36eval.records import Clusters, Estimator, Interval
from q36eval.stats import Limit, margin_test, summarize

Margin = Limit


def items(
    branch: Sequence[Any],
    reference: Sequence[Any] | None = None,
    units: Sequence[Any] | None = None,
    errored: Sequence[int] | None = None,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    **more: Any,
) -> Clusters:
    """Clusters of one item each, or of `units`; an errored item has none."""
    lost = tuple(errored or (0,) * len(branch))
    return Clusters(
        units=tuple(1 - each for each in lost) if units is None else tuple(map(int, units)),
        branch=tuple(map(float, branch)),
        reference=None if reference is None else tuple(map(float, reference)),
        errored=lost,
        bounds=bounds,
        **more,
    )


def taken(clusters: Clusters, rows: Sequence[int]) -> Clusters:
    """Those rows of every column, in that order, with their blocks."""
    columns: dict[str, Any] = {
        name: tuple(column[row] for row in rows)
        for name in ("units", "branch", "reference", "errored", "names", "families")
        if (column := getattr(clusters, name)) is not None
    }
    if clusters.schedule is not None:
        blocks = tuple(clusters.schedule.blocks[row] for row in rows)
        columns["schedule"] = clusters.schedule.model_copy(update={"blocks": blocks})
    return clusters.model_copy(update=columns)


def bounds_that_decide(clusters: Clusters, estimator: Estimator) -> Interval:
    """The bounds of the effect, once each agrees with the p-values of margins just within and just beyond it."""
    bounds = summarize(clusters, estimator)[3]
    for factor, decides in ((1.0001, True), (0.9999, False)):
        above = margin_test(clusters, estimator, Margin("max_value", bounds.upper * factor))
        below = margin_test(clusters, estimator, Margin("max_value", bounds.lower / factor))
        assert (above.p_pass <= 0.025) is decides
        assert (below.p_fail <= 0.025) is decides
    return bounds
