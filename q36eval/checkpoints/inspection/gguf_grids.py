"""What honest rounding of a weight to llama.cpp's blocks costs, computed from the reference's weight alone.

The grids are those of ggml/src/ggml-quants.c. A block has a scale s (and, where it is not symmetric, a least value m)
that its values call for; blocks of a K-quant or of IQ4_XS share a superblock of 256 values, whose one 16-bit scale has
`levels` steps: a block's own scale is off by up to half of one, of the largest scale there. llama.cpp searches
scales up to one step beyond or short of what the range calls for, for the least weighted error. So a value moves by

    half a step (s + S / 2 levels), and by what lies beyond the grid's end under the smallest such scale,

with S the largest scale of the superblock; a least value is off by half a level of the largest one, too. 16-bit scales
round by 2^-11 of themselves.

Measured (Gaussian and Student's t weights, some with every 64th column 30 times as large), as shares of half steps
(RMS): weight 0.59, row 0.86, group 0.89.

An importance matrix weighs errors by column, and `make_qx_quants` fits a block's scale by weighted least squares. Where
one column outweighs the others, the scale becomes x / l of its value x and level l: off by up to half of itself at
l = 1, as x / s rounds to l. So each value of the block moves by up to half of itself beyond its half step (measured:
0.97 of both). `make_qkx3_quants` puts a line through the two heaviest columns, which moves values by up to half the
block's range unless l differs by 1 (measured: 0.71 of that in RMS, two columns of each block having 10^5 times the
others' weight). IQ4 may erase a block (x near its level 1). Q8_0, MXFP4 and NVFP4 ignore importance.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.grids import (
    NEGLIGIBLE,
    Grid,
    Parts,
    Rounding,
    fp4_grid,
    rounded,
    shared_exponents_grid,
)
from q36eval.checkpoints.inspection.stored_schemes import Block
from q36eval.checkpoints.scheme import Scheme

SUPERBLOCK = 256
_IGNORING_IMPORTANCE = ("Q8_0", "MXFP4", "NVFP4")
OF_RANGED = 3.0
"""Half steps more that importance may move values of ranged blocks; their derived limit would hide an erased block."""
OF_IMPORTANCE = 0.01
"""How much smaller a weight may come out where columns counted differently."""
ROUNDED_TO_F16 = 2.0**-11
_LEAST_F16 = 2.0**-25


@dataclass(frozen=True)
class _Grid:
    """`width` values share a scale; the grid ends `top` steps above zero, or above the least value where `ranged`;
    `levels` is half the steps that a block's scale has (0: it is a 16-bit number by itself)."""

    width: int
    top: float
    levels: int = 0
    ranged: bool = False


_GRIDS = {
    "Q8_0": _Grid(32, 127),
    "Q5_0": _Grid(32, 15),
    "Q4_0": _Grid(32, 7),
    "Q5_1": _Grid(32, 31, ranged=True),
    "Q4_1": _Grid(32, 15, ranged=True),
    "Q6_K": _Grid(16, 31, 128),
    "Q5_K": _Grid(32, 31, 63, ranged=True),
    "Q4_K": _Grid(32, 15, 63, ranged=True),
    "Q3_K": _Grid(16, 3, 32),
    "Q2_K": _Grid(16, 3, 15, ranged=True),
}
_IQ4 = {"IQ4_NL": 0, "IQ4_XS": 32}
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""`kvalues_iq4nl`: half a gap is 6 near zero, and 12 between the last ones; beyond 113 up to 14 are left."""


def rounding_to_blocks(parts: Parts, scheme: Scheme, weight: Tensor) -> Rounding | None:
    """Rounding of one reference's weight [out, in] to the blocks of a scheme; None where they are not known."""
    if weight.dim() != 2:
        return None
    kind, heads = scheme.setting("type"), scheme.setting("column_heads")
    # blocks lie along the stored order of columns
    order = None
    if heads is not None:
        order = torch.arange(math.prod(heads)).reshape(*heads).transpose(0, 1).reshape(-1)
        weight = weight[:, order]
    if kind in _GRIDS:
        rounding = _uniform(weight, _GRIDS[kind])
    elif kind in _IQ4:
        rounding = _table(weight, _IQ4[kind])
    elif kind in ("MXFP4", "NVFP4"):
        grid = _microscaled(kind, parts, (weight.shape[0], weight.shape[1]))
        rounding = grid.rounding(weight[None], grid.whole(weight[None]))
    else:
        return None
    if scheme.setting("importance") and kind not in _IGNORING_IMPORTANCE:
        kept, half = rounding.kept - OF_IMPORTANCE * rounding.signal, rounding.half_steps
        rounding = replace(rounding, reach=half + _moved_by_importance(weight, kind, half), kept=kept)
    return rounding if order is None else replace(rounding, order=order[None])


def _moved_by_importance(weight: Tensor, kind: str, half_steps: Tensor) -> Tensor:
    """The most that importance moves each value by beyond its half step."""
    if kind in _IQ4 or not _GRIDS[kind].ranged:
        return weight.abs() if kind in _IQ4 else weight.abs() / 2
    blocks = _blocks(weight, _GRIDS[kind].width)
    least, most = blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True)
    return torch.minimum(torch.maximum(blocks - least, most - blocks).view_as(weight) / 2, OF_RANGED * half_steps)


def _microscaled(kind: str, parts: Parts, shape: Block) -> Grid:
    rows = parts["weight"]
    if kind == "MXFP4":
        return shared_exponents_grid(rows.reshape(1, shape[0], -1, 17)[..., 0], shape, (1, 32))
    local = rows.reshape(1, shape[0], -1, 36)[..., :4].reshape(1, shape[0], -1)
    has_unit = "weight_scale_2" in parts
    unit = parts["weight_scale_2"] if has_unit else torch.ones(())
    return fp4_grid(local.contiguous().view(torch.float8_e4m3fn), unit, shape, (1, 16), bounded=has_unit)


def _uniform(weight: Tensor, grid: _Grid) -> Rounding:
    blocks = _blocks(weight, grid.width)
    least = blocks.amin(-1, keepdim=True).clamp(max=0) if grid.ranged else torch.zeros_like(blocks[..., :1])
    above = blocks - least if grid.ranged else blocks.abs()
    step = above.amax(-1, keepdim=True) / grid.top
    coarsest = step * grid.top / max(grid.top - 1, 1)
    slack = _largest(coarsest, grid) / (2 * grid.levels) if grid.levels else coarsest * ROUNDED_TO_F16
    smallest = (step * grid.top / (grid.top + 1) - slack).clamp(min=0)
    half = (coarsest + slack) / 2 + (above - grid.top * smallest).clamp(min=0) + above * 2 * ROUNDED_TO_F16
    if grid.ranged and grid.levels:
        half = half + _largest(-least, grid) / (2 * grid.levels)
    # the last step of a symmetric grid lies on one side alone
    nearest = ((blocks - least) / step.clamp(min=torch.finfo(torch.float32).tiny)).round() * step + least
    return _rounding(weight, nearest, half + grid.top * _LEAST_F16, grid.width)


def _table(weight: Tensor, levels: int) -> Rounding:
    blocks = _blocks(weight, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 120
    slack = _largest(scale, _Grid(32, 127, levels)) / (2 * levels) if levels else scale * ROUNDED_TO_F16
    size = blocks.abs()
    half = 6.2 * (scale + slack) + 0.062 * size
    half = half + (size - 113 * (scale * 120 / 134 - slack).clamp(min=0)).clamp(min=0) + size * 2 * ROUNDED_TO_F16
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32)
    unit = blocks / (blocks.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    middles = (values[1:] + values[:-1]) / 2
    nearest = values[torch.bucketize(unit, middles)] * blocks.abs().amax(-1, keepdim=True) / 127
    return _rounding(weight, nearest, half + 127 * _LEAST_F16, 32)


def _blocks(weight: Tensor, width: int) -> Tensor:
    return weight.reshape(len(weight), -1, width)


def _largest(scales: Tensor, grid: _Grid) -> Tensor:
    """Of every superblock, for each of its blocks [out, blocks, 1]."""
    per_superblock = SUPERBLOCK // grid.width
    whole = scales.reshape(len(scales), -1, per_superblock)
    return whole.amax(-1, keepdim=True).expand_as(whole).reshape(scales.shape)


def _rounding(weight: Tensor, nearest: Tensor, half: Tensor, width: int) -> Rounding:
    nearest, half = nearest.reshape(weight.shape), half.expand(*nearest.shape).reshape(weight.shape)
    least = max(NEGLIGIBLE * float(weight.square().mean()) ** 0.5, torch.finfo(torch.float32).tiny)
    return rounded(weight[None], nearest[None], half[None].clamp(min=least), width, False, torch.zeros(1))
