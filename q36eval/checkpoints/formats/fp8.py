"""Fine-grained FP8 (`quant_method: fp8`), as DeepSeek and Qwen publish it: value = fp8 · float32 `weight_scale_inv`.

The scale is the inverse of what the weight was multiplied by, so decoding multiplies. One scale per block, or one per
tensor where `weight_block_size` is null.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.activations import WHOLE_ROW, ActivationScheme, stored_scalar
from q36eval.checkpoints.formats.slabs import ceil_divide, need_shape, rows_along
from q36eval.checkpoints.schemes import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

Parts = Mapping[str, "torch.Tensor"]
Block = tuple[int, int]


def block_shape(weight: "torch.Tensor", scale: "torch.Tensor", block: Block) -> tuple[int, int]:
    """[out, in] of an FP8 weight, after checking that its grid of block scales fits."""
    import torch

    if weight.dtype != torch.float8_e4m3fn:
        raise CorruptCheckpointError(f"an FP8 weight is stored as {weight.dtype}")
    out, columns = weight.shape
    need_shape("the grid of block scales", scale, (ceil_divide(out, block[0]), ceil_divide(columns, block[1])))
    return out, columns


def block_scaled(weight: "torch.Tensor", scale: "torch.Tensor", block: Block) -> "torch.Tensor":
    """FP8 [out, in] times its block's scale, in float32; blocks at the edges may be partial."""
    out, columns = weight.shape
    each_row = scale.float().repeat_interleave(block[0], dim=0)[:out]
    return weight.float().mul_(each_row.repeat_interleave(block[1], dim=1)[:, :columns])


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    scale = parts["weight_scale_inv"]
    block = scheme.setting("block")
    if block is None and scale.numel() != 1:
        raise CorruptCheckpointError(f"weight_scale_inv has shape {tuple(scale.shape)}, one value is needed")
    if block is None:
        scale, block = scale.reshape(1, 1), tuple(parts["weight"].shape)
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
