"""What honest rounding of a weight to its stored grid costs, computed from the reference weight and not from the file.

The grid is that of a calibration by the largest value of each group, the coarsest a producer has a reason to choose:
clipping, MSE search and learned scales only make it finer. The stored scale is followed within what conventions differ
by (a symmetric integer grid may end at 2^(b-1) - 1 or half a step later; an NVFP4 local scale is rounded to FP8) and no
further, so that a scale that is too large buys no room.

Round to nearest moves a value by at most half the gap it lies in. The gaps, in units of the scale: integers 1; FP4 E2M1
0.5 below 2, 1 below 4, 2 above; FP8 E4M3 an eighth of the power of two at or below the value, 2^-9 for subnormal ones
(OCP Microscaling Formats 1.0, section 5.3; OCP 8-bit Floating Point 1.0). A subnormal NVFP4 local scale is itself off
by 2^-10, and scales and products rounded to BF16 cost up to three times 2^-9 of the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.stored import Block, block_of, grid_of

FP4_MAX, FP8_MAX = 6.0, 448.0
BF16_ROUNDINGS = 2.0**-7
NEGLIGIBLE = 2.0**-12
"""Share of the weight's RMS below which an error is none, in whatever row or group: such values may underflow."""
SHARED_SCALE = 16.0
"""How much larger than its own a scale of a whole tensor may be, since engines want one for fused projections."""
Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rounding:
    """Round to nearest of one weight [out, in], its columns ordered so that those of one group lie together.

    `half_steps` is the most it moves each value by; `noise` the RMS of what it does move them by, `gain` the share of
    the weight it leaves; `width` how many values of a row share a scale; `oversize` how many times as large as any
    convention makes them the stored scales typically are, 0 where a producer may choose them freely; `order` the
    weight's column at each place, None where that is the place itself.
    """

    half_steps: Tensor
    noise: float
    gain: float
    width: int
    floating: bool
    oversize: float
    order: Tensor | None = None

    def ordered(self, values: Tensor) -> Tensor:
        """[out, in] with the columns in this order."""
        return values if self.order is None else values[:, self.order]

    def column(self, place: int) -> int:
        """The weight's column at a place."""
        return place if self.order is None else int(self.order[place])


def honest_rounding(
    parts: Parts, original: Tensor, block: Block | None = None, bits: int | None = None
) -> Rounding | None:
    """Rounding of the reference weight to the grid of the stored `parts`; None for formats whose grid is not known.

    `original` is float32 [out, in]; `block` says how many rows and columns share a scale and `bits` how many an integer
    has, where that is declared.
    """
    if original.dim() != 2:
        return None
    columns = original.shape[1]
    if "qweight" in parts:
        return _integers(
            parts["scales"].T, parts.get("g_idx"), original, block, bits or _bits(parts["qweight"], columns)
        )
    values = parts.get("weight_packed", parts.get("weight"))
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    if values is None or scale is None:
        return None
    if values.dtype == torch.uint8:
        return _fp4(parts, scale, original, block)
    if values.dtype in (torch.int8, torch.int32):
        known = bits or (8 if values.dtype == torch.int8 else _bits(values.T, columns))
        return _integers(scale, parts.get("weight_g_idx"), original, block, known)
    return _fp8(scale, original, block) if values.dtype == torch.float8_e4m3fn else None


def _bits(words: Tensor, columns: int) -> int:
    return 32 * words.shape[0] // columns


def _largest(weight: Tensor, height: int, width: int) -> Tensor:
    """The largest magnitude in each block [out / height, in / width]; blocks at the edges may be partial."""
    out, columns = weight.shape
    size = torch.nn.functional.pad(weight.abs(), (0, -columns % width, 0, -out % height))
    rows, blocks = len(size) // height, size.shape[1] // width
    return size.reshape(rows, height, blocks, width).amax((1, 3))


def _steps(scale: Tensor, weight: Tensor, block: Block | None, least: float, most: float) -> tuple[Tensor, int, float]:
    """The scale of each value, broadcastable to `weight`; how many values of a row share one; the typical excess.

    The scale is the stored one within `least` and `most` times its block's largest value; the excess is the median of
    what it is over the latter.
    """
    out, columns = weight.shape
    grid = grid_of(tuple(scale.shape))
    height, width = (
        min(one, two) for one, two in zip(block_of(grid, (out, columns), block), weight.shape, strict=True)
    )
    top = _largest(weight, height, width)
    stored = scale.float().abs().reshape(grid).nan_to_num(0.0)
    honest = torch.minimum(torch.maximum(stored, top * least), top * most)
    tall = honest if grid[0] == 1 else honest.repeat_interleave(height, 0)[:out]
    told = top > NEGLIGIBLE * weight.square().mean().sqrt()
    excess = float((stored[told] / (top[told] * most)).median()) if top.numel() > 1 and bool(told.any()) else 0.0
    return tall if grid[1] == 1 else tall.repeat_interleave(width, 1)[:, :columns], width, excess


def _rounding(
    weight: Tensor,
    gap: Tensor,
    width: int,
    oversize: float | None,
    more: Tensor | None = None,
    order: Tensor | None = None,
    top: float = torch.inf,
) -> Rounding:
    """`gap` lies around each value, `more` is the least half step, `top` the number of gaps to the grid's end."""
    gap = gap.clamp(min=torch.finfo(torch.float32).tiny)
    nearest = (weight / gap).round_().clamp_(-top, top - 1).mul_(gap)
    noise, signal = float((weight - nearest).square_().mean().sqrt()), float(weight.square().mean())
    gain = float(nearest.mul_(weight).mean()) / signal if signal else 1.0
    half = gap.expand_as(weight) / 2
    half = half if more is None else torch.maximum(half, more)
    negligible = NEGLIGIBLE * signal**0.5
    half = half.add(weight.abs(), alpha=BF16_ROUNDINGS).clamp_(min=max(negligible, torch.finfo(torch.float32).tiny))
    return Rounding(half, noise, gain, width, oversize is None, oversize or 0.0, order)


def _integers(scale: Tensor, groups: Tensor | None, weight: Tensor, block: Block | None, bits: int) -> Rounding:
    order = None
    if groups is not None and not bool((groups == -1).all()):
        order = torch.argsort(groups, stable=True)
        weight = weight[:, order]
    top = 2.0 ** (bits - 1)
    # a scale rounded to BF16 may be larger by 2^-8
    step, width, excess = _steps(scale, weight, block, 1 / (top - 0.5), (1 + 2.0**-8) / max(top - 1, 1.0))
    return _rounding(weight, step, width, excess, None, order, top)


def _fp4(parts: Parts, local: Tensor, weight: Tensor, block: Block | None) -> Rounding:
    unit = parts["weight_scale_2"].float() if "weight_scale_2" in parts else 1 / parts["weight_global_scale"].float()
    unit = unit.abs().reshape(()).nan_to_num(0.0)
    # an FP8 scale is off by up to 2^-4 of it
    scale, width, excess = _steps(local.float() * unit, weight, block, 0.93 / FP4_MAX, 1.07 / FP4_MAX)
    size = weight.abs()
    gap = torch.where(size >= 3.96 * scale, 2 * scale, torch.where(size >= 1.98 * scale, scale, scale / 2))
    own = size.max() / (FP4_MAX * FP8_MAX)
    subnormal = FP4_MAX * 2.0**-10 * torch.minimum(unit, SHARED_SCALE * own)
    # a group may also be made to end at 4, where that costs it less: 1.5 times the scale
    return _rounding(weight, gap, width, excess / 1.5, subnormal)


def _fp8(scale: Tensor, weight: Tensor, block: Block | None) -> Rounding:
    step, width, _ = _steps(scale, weight, block, 0.99 / FP8_MAX, SHARED_SCALE / FP8_MAX)
    _, exponent = torch.frexp(weight.abs() / step.clamp(min=torch.finfo(torch.float32).tiny))
    # value = mantissa * 2^exponent, mantissa in [0.5, 1)
    gap = torch.ldexp(torch.ones_like(weight), (exponent - 1).clamp(min=-6) - 3).mul_(step)
    return _rounding(weight, gap, min(width, 128), None)
