"""The parts of a stored weight, as every format needs them: checked, cut by rows, unpacked; and scales of its inputs.

Packed values are taken apart by vectorised code of our own: importing the formats' libraries for it takes seconds.
Tests hold each function to the library's result, bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

Parts = Mapping[str, "torch.Tensor"]
"""Stored tensors by the name of the part."""
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
        raise CorruptCheckpointError("tensor-shape", f"{name} has shape {tuple(tensor.shape)}, {expected} is needed")


def need_matrix(name: str, tensor: "torch.Tensor") -> tuple[int, int]:
    """The two sizes of a part.

    Raises:
        CorruptCheckpointError: `tensor` has more or fewer.
    """
    if tensor.dim() != 2:
        raise CorruptCheckpointError(
            "tensor-shape", f"{name} has shape {tuple(tensor.shape)}, rows and columns are needed"
        )
    return int(tensor.shape[0]), int(tensor.shape[1])


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without its axes of size one."""
    return tuple(size for size in shape if size != 1)


def need_one_value(name: str, tensor: "torch.Tensor") -> None:
    """Refuse several values where one is meant: broadcasting would spread them over whatever fits.

    Raises:
        CorruptCheckpointError: `tensor` holds none or several.
    """
    if tensor.numel() != 1:
        raise CorruptCheckpointError("tensor-shape", f"{name} has shape {tuple(tensor.shape)}, one value is needed")


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
            raise CorruptCheckpointError(
                "tensor-dtype", f"{name} is stored as {parts[name].dtype}, {' or '.join(dtypes)} is needed"
            )


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
                raise UsageError(
                    "format-unsupported",
                    f"{name} has a row for every {height} rows of a large weight, which is not decoded",
                )
            cut[name] = cut[name][int(start // height) : -int(-stop // height)]
    return cut


FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""FP4 E2M1 by code; bit 3 is the sign (OCP Microscaling Formats 1.0, section 5.3.3)."""


def unpack_words(packed: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Unsigned integers [n · 32 / bits, m] from int32 words [n, m], lowest bits first."""
    import torch

    count = packed.shape[0] * 32 // bits
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
        unsigned: torch.Tensor = ((packed.unsqueeze(1) >> shifts[None, :, None]) & (2**bits - 1)).flatten(0, 1)
        return unsigned
    first = torch.arange(count, device=packed.device) * bits
    word, shift = first // 32, (first % 32).unsqueeze(1)
    words = torch.cat([packed.long() & 0xFFFFFFFF, packed.new_zeros(1, packed.shape[1]).long()])
    pair = words[word] | (words[word + 1] << 32)
    across: torch.Tensor = ((pair >> shift) & (2**bits - 1)).int()
    return across


def unpack_signed(packed: "torch.Tensor", bits: int, shape: Sequence[int], packed_dim: int = 1) -> "torch.Tensor":
    """Int8 [rows, columns] from int32 words along `packed_dim`, stored with half their range added."""
    import torch

    words = packed if packed_dim == 0 else packed.T
    values = unpack_words(words, bits)[: shape[packed_dim]].sub_(2 ** (bits - 1)).to(torch.int8)
    return values if packed_dim == 0 else values.T


def unpack_fp4(packed: "torch.Tensor") -> "torch.Tensor":
    """Float32 [..., 2 m] from bytes [..., m] of two FP4 values each, the low nibble first."""
    import torch

    signed = torch.tensor([*FP4_MAGNITUDES, *(-value for value in FP4_MAGNITUDES)], device=packed.device)
    # both values of a byte are looked up at once, as one number of eight bytes
    pairs = torch.stack((signed.repeat(16), signed.repeat_interleave(16)), dim=-1).view(torch.int64).flatten()
    values = pairs.index_select(0, packed.flatten().int()).view(torch.float32)
    return values.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def shared_exponents(stored: "torch.Tensor") -> "torch.Tensor":
    """Float32 powers of two from bytes of E8M0, the exponent plus 127; 255 is NaN (OCP MX 1.0, section 5.4.1)."""
    import torch

    return stored.view(torch.float8_e8m0fnu).float()


WHOLE_ROW = 0
"""A `group_size` that stands for all features of a token."""


@dataclass(frozen=True)
class ActivationScheme:
    """Quantization of a module's input, in groups of `group_size` along the last axis.

    - `nvfp4`: FP4 E2M1 values under an FP8 E4M3 scale per 16 values, itself under the static `global_scale`
      (values are divided by `local scale / global_scale`).
    - `fp8`: FP8 E4M3 values under a float scale per group; static under `static_scale` where that is given.
    - `int8`: integers of 8 bits, symmetric, under a float scale per group or under `static_scale`.
    - `int8-asymmetric`: the same with a zero-point per group, always dynamic.
    - `mxfp4`, `mxfp8`: FP4 E2M1 or FP8 E4M3 values under a power of two per group, always dynamic. Producers differ in
      how they round that power, and `exponent` says it: `up` to the least under which nothing is clipped (Model
      Optimizer), or `near`, down unless the largest value is within an eighth of the next power (compressed-tensors).
    """

    kind: str
    group_size: int
    global_scale: float | None = None
    static_scale: float | None = None
    exponent: str | None = None


def stored_scalar(parts: Mapping[str, "torch.Tensor"], name: str, what: str) -> float:
    """The one value of a stored scale of activations.

    Raises:
        CorruptCheckpointError: it is missing, holds several values, or is not a positive number.
    """
    if name not in parts:
        raise CorruptCheckpointError("tensor-missing", f"{name} is missing, which its {what} activations need")
    need_dtypes({name: parts[name]}, {})
    need_one_value(name, parts[name])
    value = float(parts[name].float().reshape(()))
    if not 0 < value < float("inf"):
        raise CorruptCheckpointError("scale-invalid", f"{name} is {value}, a positive number is needed")
    return value
