"""Fine-grained FP8 (`quant_method: fp8`), as DeepSeek and Qwen publish it: value = fp8 · float32 `weight_scale_inv`.

The scale is the inverse of what the weight was multiplied by, so decoding multiplies. One scale per block, or one per
tensor where `weight_block_size` is null.
"""

from typing import TYPE_CHECKING

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
)
from q36eval.checkpoints.scheme import Scheme

if TYPE_CHECKING:
    import torch

Block = tuple[int, int]


def block_shape(weight: "torch.Tensor", scale: "torch.Tensor", block: Block) -> tuple[int, int]:
    """[out, in] of an FP8 weight, after checking that its grid of block scales fits."""
    out, columns = need_matrix("weight", weight)
    need_shape("the grid of block scales", scale, (ceil_divide(out, block[0]), ceil_divide(columns, block[1])))
    return out, columns


def block_scaled(weight: "torch.Tensor", scale: "torch.Tensor", block: Block) -> "torch.Tensor":
    """FP8 [out, in] times its block's scale, in float32; blocks at the edges may be partial."""
    out, columns = weight.shape
    each_row = scale.float().repeat_interleave(block[0], dim=0)[:out]
    return weight.float().mul_(each_row.repeat_interleave(block[1], dim=1)[:, :columns])


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    exponents = ("float8_e8m0fnu",) if scheme.setting("scale_fmt") == "ue8m0" else ()
    need_dtypes(parts, {"weight": ("float8_e4m3fn",), "weight_scale_inv": (*FLOATS, *exponents)})
    scale = parts["weight_scale_inv"]
    block = scheme.setting("block")
    if block is None:
        need_one_value("weight_scale_inv", scale)
        return need_matrix("weight", parts["weight"])
    return block_shape(parts["weight"], scale, block)


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] in float32."""
    shape(parts, scheme)
    block = scheme.setting("block")
    if block is None:
        return parts["weight"].float().mul_(parts["weight_scale_inv"].float().reshape(()))
    return block_scaled(parts["weight"], parts["weight_scale_inv"], block)


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop)."""
    block = scheme.setting("block")
    per_part = {"weight": 1} if block is None else {"weight": 1, "weight_scale_inv": block[0]}
    return rows_along(parts, start, stop, per_part)


def activations(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    """Dynamic FP8 per token and block width, or static under `activation_scale`."""
    if scheme.setting("inputs") == "static":
        scale = stored_scalar(parts, "activation_scale", "static FP8")
        return ActivationScheme("fp8", WHOLE_ROW, static_scale=scale)
    block = scheme.setting("block")
    return ActivationScheme("fp8", WHOLE_ROW if block is None else block[1])
