"""Model Optimizer's serialization.

NVFP4: value = fp4 · (fp8 `weight_scale` · float32 `weight_scale_2`).
FP8: value = fp8 · float32 `weight_scale`, one per tensor, per output channel, or per block.
"""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.fp8 import block_scaled, block_shape
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
    without_ones,
)
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

GROUP_SIZE = 16


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of an NVFP4 weight, after checking that all parts fit it."""
    need_dtypes(parts, _FP4_DTYPES)
    out, width = need_matrix("weight", parts["weight"])
    columns = width * 2
    need_shape("weight_scale", parts["weight_scale"], (out, columns // GROUP_SIZE))
    need_one_value("weight_scale_2", parts["weight_scale_2"])
    return out, columns


_FP4_DTYPES = {"weight": ("uint8",), "weight_scale": ("float8_e4m3fn",), "weight_scale_2": ("float32",)}


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded NVFP4 weight [out, in] in float32."""
    shape(parts, scheme)
    values = unpack_fp4(parts["weight"])
    scale = parts["weight_scale"].float() * parts["weight_scale_2"].float().reshape(())
    decoded: torch.Tensor = (values.reshape(len(values), -1, GROUP_SIZE) * scale.unsqueeze(-1)).flatten(-2)
    return decoded


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop) of an NVFP4 weight."""
    return rows_along(parts, start, stop, {"weight": 1, "weight_scale": 1})


def activations(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    """NVFP4 activations under `input_scale`, the reciprocal of a global scale; None for a weight-only algorithm."""
    if scheme.setting("inputs") is None:
        return None
    return ActivationScheme("nvfp4", GROUP_SIZE, 1.0 / stored_scalar(parts, "input_scale", "NVFP4"))


def fp8_shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of an FP8 weight, after checking that its scales are what the algorithm stores."""
    need_dtypes(parts, {"weight": ("float8_e4m3fn",), "weight_scale": FLOATS})
    out, columns = need_matrix("weight", parts["weight"])
    scale, block = parts["weight_scale"], scheme.setting("block")
    if block is not None:
        return block_shape(parts["weight"], _grid(parts, block), block)
    if scheme.setting("per_channel"):
        if scale.numel() != out:
            raise CorruptCheckpointError(
                "tensor-shape", f"weight_scale has shape {tuple(scale.shape)}, one per output is needed"
            )
    else:
        need_one_value("weight_scale", scale)
    return out, columns


def decode_fp8(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded FP8 weight [out, in] in float32."""
    fp8_shape(parts, scheme)
    scale, block = parts["weight_scale"], scheme.setting("block")
    if block is not None:
        return block_scaled(parts["weight"], _grid(parts, block), block)
    return parts["weight"].float().mul_(scale.float().reshape(-1, 1))


def fp8_rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop) of an FP8 weight."""
    block = scheme.setting("block")
    if block is not None:
        parts = {**parts, "weight_scale": _grid(parts, block)}
    height = block[0] if block else 1 if scheme.setting("per_channel") else None
    return rows_along(parts, start, stop, {"weight": 1} if height is None else {"weight": 1, "weight_scale": height})


def fp8_activations(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    """FP8 activations: static under `input_scale`, or dynamic per token; None for a weight-only algorithm."""
    if scheme.setting("inputs") == "token":
        return ActivationScheme("fp8", WHOLE_ROW)
    if scheme.setting("inputs") == "tensor":
        return ActivationScheme("fp8", WHOLE_ROW, static_scale=stored_scalar(parts, "input_scale", "static FP8"))
    return None


def _grid(parts: Parts, block: tuple[int, int]) -> "torch.Tensor":
    """Block scales [out / 128, in / 128], also where they are stored with the block's own axes of size one, or without
    any axis of size one (Model Optimizer 0.47: `[in / 128]` of a weight of at most 128 rows)."""
    scale, (out, columns) = parts["weight_scale"], need_matrix("weight", parts["weight"])
    needed = (ceil_divide(out, block[0]), ceil_divide(columns, block[1]))
    return scale.reshape(needed) if without_ones(scale.shape) == without_ones(needed) else scale
