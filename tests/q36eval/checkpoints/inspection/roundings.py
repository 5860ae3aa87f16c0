"""Rounding of one weight to the grid of its stored parts, by what the pass over stacks of weights is made of."""

from collections.abc import Mapping

from torch import Tensor

from q36eval.checkpoints.inspection.grids import Rounding, Usage, stored_grid, sums_of, usages
from q36eval.checkpoints.inspection.stored_schemes import Block


def honest_rounding(
    parts: Mapping[str, Tensor], original: Tensor, block: Block | None = None, bits: int | None = None
) -> Rounding:
    shape = (original.shape[0], original.shape[1])
    grid = stored_grid({part: tensor[None] for part, tensor in parts.items()}, shape, block, bits)
    assert grid is not None
    return grid.rounding(original[None], grid.whole(original[None]))


def usage(error: Tensor, original: Tensor, rounding: Rounding) -> Usage:
    sums = sums_of(error[None], original[None], rounding)
    assert sums.on_grid is not None
    return usages(sums, sums.on_grid, rounding)[0]
