"""What rounding to a stored grid can cost each value of a tensor at most.

Round to nearest moves a value by at most half the gap beside the grid point it lands on. The gaps, in units of the
scale: integers 1; FP4 E2M1 0.5 below 2, 1 below 4, 2 above; FP8 E4M3 an eighth of the power of two at or below the
value, 2^-9 for subnormal ones (OCP Microscaling Formats 1.0, section 5.3; OCP 8-bit Floating Point 1.0). An NVFP4 local
scale is itself rounded to FP8 E4M3: by 2^-4 of it, which costs the group's largest value 0.375 of a scale and stays
inside the gap there, or by 2^-10 where it is subnormal, which is added. Scales and products rounded to BF16 cost up to
three times 2^-9 of the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.stored import Block, block_of, grid_of

FP4_MAX = 6.0
BF16_ROUNDINGS = 2.0**-7
BEYOND_BY_ROUNDING = 0.01
"""Share of values beyond half a step up to which a tensor counts as rounded to nearest."""
CALIBRATED_HALF_STEPS = 1.5
FLOAT8_HALF_STEPS = 0.8
"""FP8 is rounded to nearest by every producer we know, which uses 0.49 over a whole tensor, and by as much more as GPTQ
costs integers (a third) 0.65; on a grid half as fine, one mantissa bit short, it is 0.95."""
Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Bound:
    """Half a step per value; how many values of a row share a scale; what the tensor's RMS may reach in half steps."""

    values: Tensor
    width: int
    calibrated: float = CALIBRATED_HALF_STEPS


def rounding_bound(parts: Parts, decoded: Tensor, block: Block | None = None) -> Bound | None:
    """The bound on |decoded - original|, value by value; None for formats whose grid is not known here.

    `decoded` is float32 [out, in]; `block` says how many of its rows and columns share a scale, where that is declared.
    """
    if decoded.dim() != 2:
        return None
    if "qweight" in parts:
        return _integers(parts["scales"].T, parts.get("g_idx"), decoded, block)
    values = parts.get("weight_packed", parts.get("weight"))
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    if values is None or scale is None:
        return None
    if values.dtype == torch.uint8:
        return _fp4(parts, scale, decoded, block)
    if values.dtype in (torch.int8, torch.int32):
        return _integers(scale, parts.get("weight_g_idx"), decoded, block)
    return _fp8(scale, decoded, block) if values.dtype == torch.float8_e4m3fn else None


def _spread(scale: Tensor, decoded: Tensor, block: Block | None, groups: Tensor | None = None) -> tuple[Tensor, int]:
    """The scale of each value, broadcastable to `decoded`, and how many values of a row share one."""
    out, columns = decoded.shape
    grid = grid_of(tuple(scale.shape))
    scale = scale.float().reshape(grid)
    height, width = (
        min(size, most) for size, most in zip(block_of(grid, (out, columns), block), (out, columns), strict=True)
    )
    rows = scale if grid[0] == 1 else scale.repeat_interleave(height, 0)[:out]
    if grid[1] == 1:
        return rows, columns
    if groups is not None:
        return rows[:, groups.long()], width
    return rows.repeat_interleave(width, 1)[:, :columns], width


def _integers(scale: Tensor, groups: Tensor | None, decoded: Tensor, block: Block | None) -> Bound:
    step, width = _spread(scale, decoded, block, groups)
    return Bound(decoded.abs().mul_(BF16_ROUNDINGS).add_(step.abs() / 2), width)


def _fp4(parts: Parts, local: Tensor, decoded: Tensor, block: Block | None) -> Bound:
    unit = parts["weight_scale_2"].float() if "weight_scale_2" in parts else 1 / parts["weight_global_scale"].float()
    unit = unit.reshape(())
    scale, width = _spread(local.float() * unit, decoded, block)
    size = decoded.abs()
    # 0.99: a value that was rounded to BF16 when it was decoded still counts as the grid point it is
    half_gap = torch.where(size >= 3.96 * scale, scale, torch.where(size >= 1.98 * scale, scale / 2, scale / 4))
    subnormal = FP4_MAX * 2.0**-10 * unit.abs()
    return Bound(torch.maximum(half_gap.abs(), subnormal).add_(size.mul_(BF16_ROUNDINGS)), width)


def _fp8(scale: Tensor, decoded: Tensor, block: Block | None) -> Bound:
    step, width = _spread(scale, decoded, block)
    size = decoded.abs()
    _, exponent = torch.frexp(size / step.abs())  # value = mantissa * 2^exponent, mantissa in [0.5, 1)
    half_gap = torch.ldexp(torch.ones_like(size), (exponent - 1).clamp(min=-6) - 4).mul_(step.abs())
    return Bound(half_gap.add_(size.mul_(BF16_ROUNDINGS)), min(width, 128), FLOAT8_HALF_STEPS)


def bound_usage(error: Tensor, bound: Bound) -> tuple[float, int, int]:
    """How much of what rounding can cost was used (at most 1 for an honest tensor), and where: (usage, row, column).

    A tensor whose values nearly all stay within half a step was rounded to nearest: then no group of values under one
    scale may have an RMS beyond it. Otherwise other rounding is assumed (GPTQ moves later columns to make up for the
    earlier ones, AutoRound chooses the other neighbour, MSE observers clip), and the whole tensor's RMS may reach
    `calibrated` half steps. GPTQ has no useful bound of its own for single values: it is Babai's nearest plane
    (arXiv 2507.18553), which bounds the error weighted by the Hessian; unweighted, with 1 % damping, only an RMS of
    five steps follows. Rounding to nearest has an RMS of 0.58 half steps on integers, our GPTQ branches 0.68 to 0.77;
    a scale off by two costs 2 and more.
    """
    used = (error.abs() / bound.values.clamp(min=torch.finfo(torch.float32).tiny)).square_()
    if float((used > 1).float().mean()) > BEYOND_BY_ROUNDING:
        row = int(used.mean(1).argmax())
        return float(used.mean().sqrt()) / bound.calibrated, row, 0
    spare = -used.shape[1] % bound.width
    if spare:
        used = torch.nn.functional.pad(used, (0, spare))
    groups = used.reshape(used.shape[0], -1, bound.width).mean(-1)
    where = int(groups.argmax())
    row, group = divmod(where, groups.shape[1])
    return float(groups.flatten()[where].sqrt()), row, group * bound.width
