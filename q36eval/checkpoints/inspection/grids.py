"""What honest rounding of a weight to its stored grid costs, computed from the reference weight and not from the file.

The grid is that of a calibration by the largest value of each group, the coarsest a producer has a reason to choose:
clipping, MSE search and learned scales only make it finer. The stored scale is followed within what conventions differ
by (a symmetric integer grid may end at 2^(b-1) - 1 or half a step later; an NVFP4 local scale is rounded to FP8) and no
further, so that a scale that is too large buys no room.

Round to nearest moves a value by at most half the gap it lies in. The gaps, in units of the scale: integers 1; FP4 E2M1
0.5 below 2, 1 below 4, 2 above; FP8 E4M3 an eighth of the power of two at or below the value, 2^-9 for subnormal ones
(OCP Microscaling Formats 1.0, section 5.3; OCP 8-bit Floating Point 1.0). A subnormal NVFP4 local scale is itself off
by 2^-10, and scales and products rounded to BF16 cost up to three times 2^-9 of the value. Microscaled groups share a
power of two, which producers round down (OCP), to the nearest, or up; where down, what lies above the largest value of
the format is clipped to it.

How much of that a weight's error uses is computed as a whole, in each row and in each group.
Usage is counted in half steps of the grid the reference weight calls for, as the root of squared errors over
squared half steps. Round to nearest uses at most 1 of any group, 0.5 to 0.6 of a weight. An MSE search over scales
that includes the unclipped one can only use less, group by group. GPTQ moves later columns to make up for earlier ones
and has no useful bound of its own: it is Babai's nearest plane (arXiv 2507.18553), which bounds the error weighted by
the Hessian; unweighted, with 1 % damping, only an RMS of five steps follows. What it does cost (simulated, Gaussian and
Student's t weights with 4 degrees of freedom, 2 to 8 bits, FP4 and FP8, inputs autocorrelated by 0.95 or with spectra
falling as i^-0.5 to i^-2; our own branches cost 0.68 to 0.77):

    weight 0.78 (1.2 with every 64th channel of the inputs 30 times as large), row 0.89 (2.3), group 1.6 (4.2)

Every limit is a fixed figure, or follows a median between two fixed figures, of which the upper one stands below what
the damage of half the rows or groups does to the weight as a whole: more damage never means fewer findings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from q36eval.checkpoints.formats.parts import shared_exponents
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
    weight's column at each place, None where that is the place itself; `inside` the values (in that order) that the
    stored grid reaches, None where that is not asked: a producer may clip the others.
    """

    half_steps: Tensor
    noise: float
    gain: float
    width: int
    floating: bool
    oversize: float
    order: Tensor | None = None
    inside: Tensor | None = None

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
    if scale.dtype == torch.uint8:
        return rounding_of_shared_exponents(scale, original, block, is_fp4=values.dtype == torch.uint8)
    if values.dtype == torch.uint8:
        return rounding_of_fp4(scale, _unit(parts), original, block)
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
    grid, (height, width) = _grid(scale, weight, block)
    top = _largest(weight, height, width)
    stored = scale.float().abs().reshape(grid).nan_to_num(0.0)
    honest = torch.minimum(torch.maximum(stored, top * least), top * most)
    large = top > NEGLIGIBLE * weight.square().mean().sqrt()
    excess = 0.0
    if top.numel() > 1 and bool(large.any()):
        excess = float((stored[large] / (top[large] * most)).median())
    return _for_each(honest, height, width, (out, columns)), width, excess


def _grid(scale: Tensor, weight: Tensor, block: Block | None) -> tuple[Block, Block]:
    """Rows and columns of scales, and how many rows and columns of the weight share one."""
    size = (weight.shape[0], weight.shape[1])
    grid = grid_of(tuple(scale.shape), size, block)
    height, width = (min(one, two) for one, two in zip(block_of(grid, size, block), size, strict=True))
    return grid, (height, width)


def _for_each(grid: Tensor, height: int, width: int, size: Block) -> Tensor:
    """One value per block as what broadcasts to one per element."""
    tall = grid if len(grid) == 1 else grid.repeat_interleave(height, 0)[: size[0]]
    return tall if grid.shape[1] == 1 else tall.repeat_interleave(width, 1)[:, : size[1]]


def _rounding(
    weight: Tensor,
    gap: Tensor,
    width: int,
    oversize: float | None,
    more: Tensor | None = None,
    order: Tensor | None = None,
    top: float = torch.inf,
    largest: Tensor | float = torch.inf,
) -> Rounding:
    """`gap` lies around each value, `more` is the least half step, `top` the number of gaps to the grid's end and
    `largest` the value there."""
    gap = gap.clamp(min=torch.finfo(torch.float32).tiny)
    nearest = (weight / gap).round_().clamp_(-top, top - 1).mul_(gap)
    nearest = nearest.clamp(torch.as_tensor(-largest), torch.as_tensor(largest))
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
    # a scale rounded to BF16 may be larger by 2^-8, one rounded up to a power of two by twice
    most = (2.0 if _powers_of_two(scale) else 1 + 2.0**-8) / max(top - 1, 1.0)
    step, width, excess = _steps(scale, weight, block, 1 / (top - 0.5), most)
    grid, (height, across) = _grid(scale, weight, block)
    stored = scale.float().abs().reshape(grid).nan_to_num(0.0)
    inside = weight.abs() <= max(top - 1, 1.0) * _for_each(stored, height, across, (weight.shape[0], weight.shape[1]))
    return replace(_rounding(weight, step, width, excess, None, order, top), inside=inside)


def _powers_of_two(scale: Tensor) -> bool:
    """Whether all of several scales are: of one alone it says nothing."""
    mantissa, _ = torch.frexp(scale.float().abs())
    return scale.numel() > 1 and bool((mantissa == 0.5).all())


def _unit(parts: Parts) -> Tensor:
    return parts["weight_scale_2"] if "weight_scale_2" in parts else 1 / parts["weight_global_scale"].float()


def rounding_of_fp4(
    local: Tensor, unit: Tensor, weight: Tensor, block: Block | None, *, bounded: bool = True
) -> Rounding:
    """To NVFP4 under `local` scales and the scale `unit` of the whole weight; `bounded` says that the latter follows
    from the weight, and else what its subnormal local scales cost counts as it is."""
    unit = unit.float().abs().reshape(()).nan_to_num(0.0)
    # an FP8 scale is off by up to 2^-4 of it
    scale, width, excess = _steps(local.float() * unit, weight, block, 0.93 / FP4_MAX, 1.07 / FP4_MAX)
    size = weight.abs()
    gap = _fp4_gap(size, scale)
    own = size.max() / (FP4_MAX * FP8_MAX)
    subnormal = FP4_MAX * 2.0**-10 * (torch.minimum(unit, SHARED_SCALE * own) if bounded else unit)
    # a group may also be made to end at 4, where that costs it less: 1.5 times the scale
    return _rounding(weight, gap, width, excess / 1.5, subnormal)


def _fp4_gap(size: Tensor, scale: Tensor) -> Tensor:
    return torch.where(size >= 3.96 * scale, 2 * scale, torch.where(size >= 1.98 * scale, scale, scale / 2))


def _fp8(scale: Tensor, weight: Tensor, block: Block | None) -> Rounding:
    step, width, _ = _steps(scale, weight, block, 0.99 / FP8_MAX, SHARED_SCALE / FP8_MAX)
    return _rounding(weight, _fp8_gap(weight, step), min(width, 128), None)


def _fp8_gap(weight: Tensor, step: Tensor) -> Tensor:
    _, exponent = torch.frexp(weight.abs() / step.clamp(min=torch.finfo(torch.float32).tiny))
    # value = mantissa * 2^exponent, mantissa in [0.5, 1)
    return torch.ldexp(torch.ones_like(weight), (exponent - 1).clamp(min=-6) - 3).mul_(step)


def rounding_of_shared_exponents(
    exponents: Tensor, weight: Tensor, block: Block | None, *, is_fp4: bool = True
) -> Rounding:
    """To MXFP4, or to MXFP8, under the stored `exponents`."""
    scale = shared_exponents(exponents)
    top, power = (FP4_MAX, 4.0) if is_fp4 else (FP8_MAX, 256.0)
    # rounded down, the largest value of a group lies below twice the format's largest power; rounded up, above half top
    step, width, excess = _steps(scale, weight, block, 0.99 / (2 * power), 2.01 / top)
    gap = _fp4_gap(weight.abs(), step) if is_fp4 else _fp8_gap(weight, step)
    clipped = weight.abs() - top * step
    return _rounding(weight, gap, width, excess if is_fp4 else None, clipped, largest=top * step)


BEYOND_BY_ROUNDING = 0.01
"""Share of values beyond half a step up to which a row counts as rounded to nearest."""
BEST_ROWS = 0.1
"""A weight counts as rounded to nearest when this share of its rows does: damage in the others does not change that."""
WEIGHT_LIMIT = 1.25
FLOATING_LIMIT = 0.8
"""FP8 is rounded to nearest by every producer we know (0.49), and would cost 0.66 with GPTQ; one mantissa bit short it
costs 0.95. (A fifth less than in the table, since roundings to BF16 count as half steps here.)"""
ROW_TIMES_MEDIAN, ROW_LIMITS = 2.5, (1.5, 3.0)
GROUP_TIMES_MEDIAN, GROUP_LIMITS = 4.0, (2.0, 6.0)
"""Groups are compared with those of the same columns in other rows: what GPTQ costs depends on the columns' inputs."""
SCALE_LIMIT = 1.2
"""Beyond what conventions differ by: for values that GPTQ has moved before it calibrates their group."""
LEAST_GAIN = 0.3
"""Of a row less than this is left only when it was erased or replaced: clipping leaves two thirds even with 2 bits."""
SCALES = "by its scales"


@dataclass(frozen=True)
class Usage:
    """The largest share of its limit that was used (at most 1 for an honest weight), and where."""

    share: float
    what: str
    row: int
    column: int


def usage(error: Tensor, original: Tensor, rounding: Rounding) -> Usage:
    """Of `error` = decoded - original, both float32 [out, in]."""
    squared, limit = rounding.ordered(error).square(), rounding.half_steps.square()
    sums = _by_group(squared, rounding.width), _by_group(limit, rounding.width)
    groups, rows = (sums[0] / sums[1]).sqrt(), (sums[0].sum(1) / sums[1].sum(1)).sqrt()
    whole = float((sums[0].sum() / sums[1].sum()).sqrt())
    row = int(rows.argmax())
    usages = [
        Usage(whole / (FLOATING_LIMIT if rounding.floating else WEIGHT_LIMIT), "as a whole", row, 0),
        Usage(float(rows[row]) / _between(ROW_TIMES_MEDIAN * float(rows.median()), ROW_LIMITS), "in a row", row, 0),
    ]
    # scales that cost no more than the tightest do are no fault, however large: the values may lie on their grid
    if float(error.square().mean().sqrt()) > rounding.noise:
        usages.append(Usage(rounding.oversize / SCALE_LIMIT, SCALES, 0, 0))
    beyond = (squared > limit).sum(1) / squared.shape[1]
    if float(beyond.quantile(BEST_ROWS)) <= BEYOND_BY_ROUNDING:
        shares = groups
    else:
        # the error that a large value leaves behind moves into other groups of its row, whose steps may be smaller
        groups = (sums[0] / torch.maximum(sums[1], sums[1].mean(1, keepdim=True))).sqrt()
        shares = groups / (GROUP_TIMES_MEDIAN * groups.median(0).values).clamp(*GROUP_LIMITS)
    row, group = divmod(int(shares.argmax()), shares.shape[1])
    usages.append(Usage(float(shares[row, group]), "in a group", row, rounding.column(group * rounding.width)))
    usages += _erased(error, original, sums[1].sum(1))
    return max(usages, key=lambda entry: entry.share)


def _by_group(values: Tensor, width: int) -> Tensor:
    """Sums [out, groups] over `width` columns each; the last group may be partial."""
    spare = -values.shape[1] % width
    padded = torch.nn.functional.pad(values, (0, spare)) if spare else values
    return padded.reshape(len(values), -1, width).sum(-1)


def _between(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _erased(error: Tensor, original: Tensor, honest: Tensor) -> list[Usage]:
    """The row of which least is left, where the grid does not itself cost about as much as there is."""
    signal = torch.einsum("oi,oi->o", original, original)
    resolved = honest < 0.9 * signal
    if not bool(resolved.any()):
        return []
    off = torch.where(resolved, torch.einsum("oi,oi->o", error, original) / signal, 0.0).abs()
    row = int(off.argmax())
    return [Usage(float(off[row]) / (1 - LEAST_GAIN), "in a row", row, 0)]
