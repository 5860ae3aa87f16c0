"""compressed-tensors formats, decoded to the bits of the library's own single-tensor decoders.

NVFP4: value = fp4 · (fp8 local scale / float32 global scale), computed in float32.
FP8 and integers: value = (q − zero) · scale, computed in the scale's dtype.
"""

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.formats.parts import (
    FLOATS,
    WHOLE_ROW,
    ActivationScheme,
    Parts,
    ceil_divide,
    need_dtypes,
    need_matrix,
    need_one_value,
    need_shape,
    rows_along,
    stored_scalar,
    unpack_fp4,
    unpack_signed,
)
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch


def plain_name(value: Any) -> str:
    """The text of an enumeration's member, or of what is text already."""
    return str(getattr(value, "value", value))


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    packed = "weight_packed" in parts
    need_dtypes(parts, _FP4_DTYPES if packed else _dtypes(scheme.compressed.weights))
    values = "weight_packed" if packed else "weight"
    rows, width = need_matrix(values, parts[values])
    columns = width * (2 if packed else 1)
    if packed:
        need_one_value("weight_global_scale", parts["weight_global_scale"])
    grid = scale_shape(rows, columns, scheme.compressed.weights, parts["weight_scale"])
    need_shape("weight_scale", parts["weight_scale"], grid)
    if "weight_zero_point" in parts:
        need_shape("weight_zero_point", parts["weight_zero_point"], grid)
    return rows, columns


_FP4_DTYPES = {"weight_packed": ("uint8",), "weight_scale": ("float8_e4m3fn",), "weight_global_scale": ("float32",)}
_PACKED_DTYPES = {
    "weight_packed": ("int32",),
    "weight_scale": FLOATS,
    "weight_shape": ("int64", "int32"),
    "weight_g_idx": ("int32", "int64"),
}


def _dtypes(weights: Any) -> dict[str, tuple[str, ...]]:
    """Of weights with one stored value each; the zero-points are stored as the values are, or as int8."""
    values = "float8_e4m3fn" if plain_name(weights.type) == "float" else "int8"
    return {"weight": (values,), "weight_scale": FLOATS, "weight_zero_point": (values, "int8")}


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in]: the library's operations one by one, in its dtypes."""
    out, columns = shape(parts, scheme)
    weights = scheme.compressed.weights
    if "weight_packed" in parts:
        values, stored = unpack_fp4(parts["weight_packed"]).bfloat16(), parts["weight_scale"].bfloat16()
        scale, zero = stored / parts["weight_global_scale"], None
    else:
        values, stored = parts["weight"], parts["weight_scale"]
        scale, zero = stored, parts.get("weight_zero_point")
    strategy = plain_name(weights.strategy)
    if strategy == "block":
        height, width = weights.block_structure
        scale = _blown_up(scale, height, width, (out, columns))
        zero = None if zero is None else _blown_up(zero, height, width, (out, columns))
    elif strategy in ("group", "tensor_group"):
        if columns % weights.group_size:
            raise CorruptCheckpointError(
                "group-size-mismatch", f"{columns} columns do not divide into groups of {weights.group_size}"
            )
        values = values.reshape(out, -1, weights.group_size)
        scale, zero = scale.unsqueeze(-1), None if zero is None else zero.unsqueeze(-1)
    values = values.to(scale.dtype)
    if zero is not None:
        values = values - zero.to(scale.dtype)
    return (values * scale).to(stored.dtype).reshape(out, columns)


def _blown_up(grid: "torch.Tensor", height: int, width: int, size: tuple[int, int]) -> "torch.Tensor":
    """One value per block as one per element; blocks at the edges may be partial."""
    return grid.repeat_interleave(height, 0)[: size[0]].repeat_interleave(width, 1)[:, : size[1]]


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop)."""
    strategy = plain_name(scheme.compressed.weights.strategy)
    height = scheme.compressed.weights.block_structure[0] if strategy == "block" else 1
    scales = {} if strategy == "tensor" else {"weight_scale": height, "weight_zero_point": height}
    return rows_along(parts, start, stop, {"weight": 1, "weight_packed": 1, **scales})


def packed_shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of a weight of packed integers, after checking that all parts fit it."""
    weights = scheme.compressed.weights
    whole = plain_name(weights.strategy) == "tensor"
    need_dtypes(parts, {**_PACKED_DTYPES, "weight_zero_point": ("int8",) if whole else ("int32",)})
    if parts["weight_shape"].numel() != 2:
        raise CorruptCheckpointError(
            "tensor-shape", f"weight_shape holds {parts['weight_shape'].numel()} values, not two"
        )
    out, columns = (int(size) for size in parts["weight_shape"].flatten())
    words = ceil_divide(columns * weights.num_bits, 32)
    if tuple(parts["weight_packed"].shape) != (out, words):
        raise CorruptCheckpointError(
            "tensor-shape", f"weight_packed does not hold {[out, columns]} values of {weights.num_bits} bits"
        )
    grid = scale_shape(out, columns, weights, parts["weight_scale"])
    need_shape("weight_scale", parts["weight_scale"], grid)
    if "weight_zero_point" in parts and whole:
        need_one_value("weight_zero_point", parts["weight_zero_point"])
    elif "weight_zero_point" in parts:
        packed = (ceil_divide(grid[0] * weights.num_bits, 32), grid[1])
        need_shape("weight_zero_point", parts["weight_zero_point"], packed)
    elif not weights.symmetric:
        raise CorruptCheckpointError(
            "tensor-missing", "weight_zero_point is missing, which its asymmetric weights need"
        )
    if scheme.setting("needs_g_idx") and "weight_g_idx" not in parts:
        raise CorruptCheckpointError(
            "tensor-missing", "weight_g_idx is missing, which columns ordered by activation need"
        )
    return out, columns


def decode_packed(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] of integers packed into int32; activation-ordered groups are followed."""
    weights = scheme.compressed.weights
    out, columns = packed_shape(parts, scheme)
    q = unpack_signed(parts["weight_packed"], weights.num_bits, (out, columns))
    scale, zero = parts["weight_scale"], parts.get("weight_zero_point")
    values = q.to(scale.dtype)
    if plain_name(weights.strategy) == "tensor":  # one scale, and a zero-point that is not packed
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
        return (values if zero is None else values.sub_(zero.to(scale.dtype))).mul_(scale)
    groups = _groups(parts, columns, scale, weights.group_size)
    if zero is not None:
        values -= unpack_signed(zero, weights.num_bits, scale.shape, packed_dim=0).to(scale.dtype)[:, groups]
    return values.mul_(scale[:, groups])


def packed_rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop) of packed integers."""
    weights = scheme.compressed.weights
    per_part: dict[str, int | Fraction] = {"weight_packed": 1}
    if plain_name(weights.strategy) != "tensor":
        per_part |= {"weight_scale": 1, "weight_zero_point": Fraction(32, weights.num_bits)}
    cut = rows_along(parts, start, stop, per_part)
    return cut | {
        "weight_shape": parts["weight_shape"].new_tensor([stop - start, int(parts["weight_shape"].flatten()[1])])
    }


def _groups(parts: Parts, columns: int, scale: "torch.Tensor", group_size: int | None) -> "torch.Tensor":
    """The group of every column; −1 throughout `weight_g_idx` means columns in order."""
    import torch

    in_order = torch.arange(columns, device=scale.device) // (group_size or columns)
    groups = parts.get("weight_g_idx", in_order).long()
    if groups.shape == (columns,) and bool((groups == -1).all()):
        groups = in_order
    if groups.shape != (columns,) or int(groups.min()) < 0 or int(groups.max()) >= scale.shape[1]:
        raise CorruptCheckpointError(
            "group-index-invalid", f"weight_g_idx does not name one of {scale.shape[1]} groups for each column"
        )
    return groups


def scale_shape(out: int, columns: int, weights: Any, scale: "torch.Tensor") -> tuple[int, ...]:
    """The shape that the scales of a strategy have."""
    strategy = plain_name(weights.strategy)
    if strategy == "block":
        height, width = weights.block_structure
        return ceil_divide(out, height), ceil_divide(columns, width)
    if strategy in ("group", "tensor_group"):
        return out, ceil_divide(columns, weights.group_size)
    if strategy == "channel":
        return out, 1
    if strategy == "tensor":
        return tuple(scale.shape) if scale.numel() == 1 else (1,)
    raise CorruptCheckpointError(
        "quantization-invalid", f"weights are quantized per {strategy}, which is no strategy for weights"
    )


def activations(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    """The input quantization of the module, None where activations stay as they are.

    Raises:
        UsageError: a kind of activation quantization that is not emulated.
        CorruptCheckpointError: static or NVFP4 activations without their scale.
    """
    inputs = scheme.compressed.input_activations
    # An embedding looks rows up: its input is token ids, there is nothing to quantize.
    if inputs is None or inputs.num_bits == 16:
        return None
    strategy, dynamic = plain_name(inputs.strategy), plain_name(inputs.dynamic)
    if (inputs.type, inputs.num_bits, strategy) == ("float", 4, "tensor_group"):  # vLLM does not look at `dynamic`
        return ActivationScheme("nvfp4", inputs.group_size, stored_scalar(parts, "input_global_scale", "NVFP4"))
    microscaled = (inputs.type, strategy, dynamic, inputs.group_size) == ("float", "group", "True", 32)
    if microscaled and inputs.num_bits in (4, 8) and str(inputs.scale_dtype) == "torch.uint8":
        return ActivationScheme(f"mxfp{inputs.num_bits}", 32, exponent="near")
    if inputs.num_bits == 8 and (inputs.type == "int" or inputs.symmetric):
        kind = "fp8" if inputs.type == "float" else "int8" if inputs.symmetric else "int8-asymmetric"
        if dynamic == "True" and strategy in ("token", "group"):
            return ActivationScheme(kind, inputs.group_size if strategy == "group" else WHOLE_ROW)
        if dynamic == "False" and strategy == "tensor" and inputs.symmetric:
            scale = stored_scalar(parts, "input_scale", "static 8-bit")
            return ActivationScheme(kind, WHOLE_ROW, static_scale=scale)
    raise UsageError(
        "activations-unsupported",
        f"activations quantized as {inputs.type}{inputs.num_bits} per {strategy} are not emulated; "
        "load with emulate_activations=False (--engine-arg weights_only=true) to judge the weights alone",
    )
