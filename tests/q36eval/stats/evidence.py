"""Margins and clusters as tests write them."""

from collections.abc import Sequence
from typing import Any

from q36eval.records import Clusters
from q36eval.stats import Limit

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
