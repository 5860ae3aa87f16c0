"""What parts must look like to be decoded, and the part of a stored tensor that belongs to some rows of its weight."""

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


def need_matrix(name: str, tensor: "torch.Tensor") -> tuple[int, int]:
    """The two sizes of a part.

    Raises:
        CorruptCheckpointError: `tensor` has more or fewer.
    """
    if tensor.dim() != 2:
        raise CorruptCheckpointError(f"{name} has shape {tuple(tensor.shape)}, rows and columns are needed")
    return int(tensor.shape[0]), int(tensor.shape[1])


def need_one_value(name: str, tensor: "torch.Tensor") -> None:
    """Refuse several values where one is meant: broadcasting would spread them over whatever fits.

    Raises:
        CorruptCheckpointError: `tensor` holds none or several.
    """
    if tensor.numel() != 1:
        raise CorruptCheckpointError(f"{name} has shape {tuple(tensor.shape)}, one value is needed")


FLOATS = ("float32", "bfloat16", "float16")
INPUT_DTYPES = {
    **dict.fromkeys(("input_global_scale", "input_scale", "activation_scale"), FLOATS),
    "input_zero_point": ("int8", "int32", "float8_e4m3fn"),
}
"""What the static scales of a module's input are stored in, whatever the format."""


def need_dtypes(parts: Mapping[str, "torch.Tensor"], known: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a part in another dtype than its producers write: the same bytes would be read as other numbers.

    Raises:
        CorruptCheckpointError: a part of `parts` is in none of the dtypes `known` for it.
    """
    for name, dtypes in {**known, **INPUT_DTYPES}.items():
        if name in parts and str(parts[name].dtype).removeprefix("torch.") not in dtypes:
            raise CorruptCheckpointError(f"{name} is stored as {parts[name].dtype}, {' or '.join(dtypes)} is needed")


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
