"""Runs of rows: shapes of scale grids, and the part of a stored tensor that belongs to some rows of its weight."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

ROWS_MULTIPLE = 128
"""Slabs begin and end on multiples of this: whole FP8 blocks, whole words of packed zero-points."""


def ceil_divide(numerator: int, denominator: int) -> int:
    """⌈numerator / denominator⌉."""
    return -(-numerator // denominator)


def need_shape(name: str, tensor: "torch.Tensor", expected: tuple[int, ...]) -> None:
    """Refuse a part that does not fit, where broadcasting would hide it.

    Raises:
        CorruptCheckpointError: `tensor` has another shape.
    """
    if tuple(tensor.shape) != expected:
        raise CorruptCheckpointError(f"{name} has shape {tuple(tensor.shape)}, {expected} is needed")


def rows_along(
    parts: Mapping[str, "torch.Tensor"], start: int, stop: int, per_part: Mapping[str, int | Fraction]
) -> dict[str, "torch.Tensor"]:
    """Rows [start, stop) of a weight: parts named in `per_part` are cut, the others stay whole.

    `per_part` says how many rows of the weight one row of the part stands for (1, a block height, or 32 / bits for
    zero-points packed along the rows).

    Raises:
        UsageError: `start` lies inside one of the part's rows, as with blocks of 96 rows.
    """
    cut = dict(parts)
    for name, height in per_part.items():
        if name in cut:
            if start % height:
                raise UsageError(f"{name} has a row for every {height} rows of a large weight, which is not decoded")
            cut[name] = cut[name][int(start // height) : -int(-stop // height)]
    return cut
