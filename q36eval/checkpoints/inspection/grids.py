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

Several weights alike [weights, out, in] are computed with at once, or some rows of one: what all of its rows decide
(`Whole`) is known before, and what is judged in the end are sums by row and by group (`Sums`).

Every limit is a fixed figure, or follows a median between two fixed figures, of which the upper one stands below what
the damage of half the rows or groups does to the weight as a whole: more damage never means fewer findings.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from q36eval.checkpoints.formats.parts import shared_exponents
from q36eval.checkpoints.inspection.stored_schemes import Block, block_of, grid_of

FP4_MAX, FP8_MAX = 6.0, 448.0
BF16_ROUNDINGS = 2.0**-7
CLIPPED_POWER = 2 / math.sqrt(3)
"""A search over powers of two clips a group where the next power, up to twice what its largest value calls for, costs
more: that is (2 s)^2 / 12 a value, where half a step is s / 2."""
NEGLIGIBLE = 2.0**-12
"""Share of the weight's RMS below which an error is none, in whatever row or group: such values may underflow."""
SHARED_SCALE = 16.0
"""How much larger than its own a scale of a whole tensor may be, since engines want one for fused projections."""
TINY = torch.finfo(torch.float32).tiny
Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rounding:
    """Round to nearest of weights [weights, out, in], the columns ordered so that those of one group lie together.

    `nearest` is what it makes of each value and `half_steps` the most it moves it by; by row [weights, out] `lost` is
    the sum of squares of what it does move them by, `kept` of the products of before and after, `signal` of the squares
    before; `width` how many values of a row share a scale; `oversize` [weights] how many times as large as any
    convention makes them the stored scales typically are, 0 where a producer may choose them freely; `order` [weights,
    in] the weight's column at each place, None where that is the place itself; `inside` the values (in that order) that
    the stored grid reaches, None where that is not asked: a producer may clip the others; `reach` how far an importance
    matrix may move each value, None where there was none.
    """

    nearest: Tensor
    half_steps: Tensor
    lost: Tensor
    kept: Tensor
    signal: Tensor
    width: int
    floating: bool
    oversize: Tensor
    order: Tensor | None = None
    inside: Tensor | None = None
    reach: Tensor | None = None

    def ordered(self, values: Tensor) -> Tensor:
        """[weights, out, in] with the columns in this order."""
        return _ordered(values, self.order)


def _ordered(values: Tensor, order: Tensor | None) -> Tensor:
    return values if order is None else values.gather(-1, order[:, None, :].expand_as(values))


@dataclass(frozen=True)
class Whole:
    """What rounding some rows has to know of all: mean squares [weights], and the largest value of every block
    [weights, rows of blocks, blocks]; `oversize` where that was worked out already."""

    mean_square: Tensor
    largest: Tensor
    oversize: Tensor | None = None


@dataclass(frozen=True)
class Grid:
    """The grid of weights that are stored alike, each value to be rounded under the scale of its `block`.

    `stored` [weights, rows of blocks, blocks] are the scales' magnitudes. The scale used lies within `least` and `most`
    times its block's largest value. `end` is the number of steps to the end of an integer grid, the largest value in
    units of the scale of a microscaled one; `unit` the scale of each whole NVFP4 weight, `bounded` whether that follows
    from the weight (else what subnormal local scales cost counts as it is); `spare` what of an excess is no excess.
    """

    kind: str
    stored: Tensor
    block: Block
    least: Tensor | float
    most: Tensor | float
    end: float = torch.inf
    unit: Tensor | None = None
    bounded: bool = True
    spare: float = 1.0
    order: Tensor | None = None

    @property
    def width(self) -> int:
        """How many values of a row are judged together."""
        return min(self.block[1], 128) if self.kind == "fp8" else self.block[1]

    def whole(self, weight: Tensor) -> Whole:
        """Of all rows of weights [weights, out, in], or of some: then to be put together with the others'."""
        return Whole(weight.square().mean((1, 2)), self.largest(weight))

    def largest(self, weight: Tensor) -> Tensor:
        """The largest magnitude in each block; blocks at the edges may be partial."""
        (_, out, columns), (height, width) = weight.shape, self.block
        height = min(height, out)
        size = _ordered(weight, self.order).abs()
        if out % height or columns % width:
            size = torch.nn.functional.pad(size, (0, -columns % width, 0, -out % height))
        rows, blocks = size.shape[1] // height, size.shape[2] // width
        return size.reshape(-1, rows, height, blocks, width).amax((2, 4))

    def oversize(self, whole: Whole) -> Tensor:
        """The typical excess of the stored scales [weights]: the median of what they are over the largest honest."""
        top = whole.largest.flatten(1)
        if top.shape[1] == 1 or self.kind in ("fp8", "mxfp8"):
            return torch.zeros_like(top[:, 0])
        large = top > NEGLIGIBLE * whole.mean_square.sqrt()[:, None]
        most = self.most.flatten(1) if isinstance(self.most, Tensor) else self.most
        excess = torch.where(large, self.stored.flatten(1) / (top * most), torch.nan)
        return (excess.nanmedian(1).values / self.spare).nan_to_num(0.0)

    def rounding(self, weight: Tensor, whole: Whole, first: int = 0) -> Rounding:
        """Rounding of rows from `first` on (the first of a block), float32 [weights, rows, in]."""
        weight, at = _ordered(weight, self.order), first // self.block[0]
        blocks = slice(at, at - (-weight.shape[1] // self.block[0]))
        stored, top = self.stored[:, blocks], whole.largest[:, blocks]
        step = self._for_each(torch.minimum(torch.maximum(stored, top * self.least), top * self.most), weight)
        size = weight.abs()
        inside: Tensor | None = None
        more: Tensor | None = None
        end: Tensor | None = None
        if self.kind == "integer":
            gap = step.expand_as(weight)
            inside = size <= max(self.end - 1, 1.0) * self._for_each(stored, weight)
        elif self.kind in ("fp4", "mxfp4"):
            gap = torch.where(size >= 3.96 * step, 2 * step, torch.where(size >= 1.98 * step, step, step / 2))
        else:
            gap = _fp8_gap(size, step)
        if self.kind == "fp4":
            assert self.unit is not None  # for the type checker: FP4 has one
            own = whole.largest.amax((1, 2), keepdim=True) / (FP4_MAX * FP8_MAX)
            unit = torch.minimum(self.unit, SHARED_SCALE * own) if self.bounded else self.unit
            more = FP4_MAX * 2.0**-10 * unit
        elif self.kind in ("mxfp4", "mxfp8"):
            end = self.end * step
            more = size - end
        gap = gap.clamp(min=TINY)
        nearest = (weight / gap).round_()
        nearest = (nearest.clamp_(-self.end, self.end - 1) if self.kind == "integer" else nearest).mul_(gap)
        nearest = nearest if end is None else nearest.clamp_(-end, end)
        half = gap.div_(2)
        half = half if more is None else torch.maximum(half, more)
        negligible = (NEGLIGIBLE * whole.mean_square.sqrt()).clamp(min=TINY)
        half = torch.maximum(half.add_(size, alpha=BF16_ROUNDINGS), negligible[:, None, None])
        floating = self.kind in ("fp8", "mxfp8")
        oversize = self.oversize(whole) if whole.oversize is None else whole.oversize
        return rounded(weight, nearest, half, self.width, floating, oversize, self.order, inside)

    def _for_each(self, scales: Tensor, weight: Tensor) -> Tensor:
        """One value per block as what broadcasts to one per element."""
        (_, out, columns), (height, width) = weight.shape, self.block
        tall = scales if scales.shape[1] == 1 else scales.repeat_interleave(height, 1)[:, :out]
        return tall if scales.shape[2] == 1 else tall.repeat_interleave(width, 2)[:, :, :columns]


def rounded(
    weight: Tensor,
    nearest: Tensor,
    half_steps: Tensor,
    width: int,
    floating: bool,
    oversize: Tensor,
    order: Tensor | None = None,
    inside: Tensor | None = None,
) -> Rounding:
    """The rounding that takes `weight`, in the order of its grid, to `nearest`; both [weights, out, in]."""
    lost, kept = (weight - nearest).square_().sum(-1), (nearest * weight).sum(-1)
    signal = weight.square().sum(-1)
    return Rounding(nearest, half_steps, lost, kept, signal, width, floating, oversize, order=order, inside=inside)


EXPONENT_BITS = 0x7F800000
"""Of a float32."""


def _fp8_gap(size: Tensor, step: Tensor) -> Tensor:
    """The distance of neighbouring FP8 E4M3 values times `step`, where a value has `size`; both float32.

    A zero counts as of [0.5, 1).
    """
    ratio = size / step.clamp(min=TINY)
    power = (ratio.view(torch.int32) & EXPONENT_BITS).view(torch.float32)  # of two, the next one below
    power = power.clamp_(2.0**-6, 2.0**127).masked_fill_(ratio == 0, 0.5)
    return power.mul_(2.0**-3).mul_(step)


def stored_grid(parts: Parts, shape: Block, block: Block | None = None, bits: int | None = None) -> Grid | None:
    """The grid of weights [weights, *shape] from their stored parts [weights, …]; None for a format that is not known.

    `block` says how many rows and columns share a scale and `bits` how many an integer has, where that is declared.
    """
    columns = shape[1]
    if "qweight" in parts:
        known = bits or _bits(parts["qweight"].shape[1], columns)
        return _integers(parts["scales"].transpose(1, 2), parts.get("g_idx"), shape, block, known)
    values = parts.get("weight_packed", parts.get("weight"))
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    if values is None or scale is None:
        return None
    if scale.dtype == torch.uint8:
        return shared_exponents_grid(scale, shape, block, is_fp4=values.dtype == torch.uint8)
    if values.dtype == torch.uint8:
        unit = parts["weight_scale_2"] if "weight_scale_2" in parts else 1 / parts["weight_global_scale"].float()
        return fp4_grid(scale, unit, shape, block)
    if values.dtype in (torch.int8, torch.int32):
        known = bits or (8 if values.dtype == torch.int8 else _bits(values.shape[-1], columns))
        return _integers(scale, parts.get("weight_g_idx"), shape, block, known)
    if values.dtype != torch.float8_e4m3fn:
        return None
    scales, size = _in_blocks(scale.float(), shape, block)
    return Grid("fp8", scales, size, 0.99 / FP8_MAX, SHARED_SCALE / FP8_MAX)


def _bits(words: int, columns: int) -> int:
    return 32 * words // columns


def _in_blocks(scale: Tensor, shape: Block, block: Block | None) -> tuple[Tensor, Block]:
    """The scales' magnitudes [weights, rows of blocks, blocks], and how many rows and columns share one."""
    grid = grid_of(tuple(scale.shape[1:]), shape, block)
    height, width = (min(one, two) for one, two in zip(block_of(grid, shape, block), shape, strict=True))
    return scale.abs().reshape(-1, *grid).nan_to_num(0.0), (height, width)


def _integers(scale: Tensor, groups: Tensor | None, shape: Block, block: Block | None, bits: int) -> Grid:
    order = None
    if groups is not None and not bool((groups == -1).all()):
        order = torch.argsort(groups, dim=-1, stable=True)
    top = 2.0 ** (bits - 1)
    # a scale rounded to BF16 may be larger by 2^-8, one rounded up to a power of two by twice
    mantissa, _ = torch.frexp(scale.float().abs().flatten(1))
    powers = (mantissa == 0.5).all(1) & (mantissa.shape[1] > 1)  # of one scale alone it says nothing
    most = torch.where(powers, 2.0, 1 + 2.0**-8)[:, None, None] / max(top - 1, 1.0)
    least = torch.where(powers, CLIPPED_POWER, 1.0)[:, None, None] / (top - 0.5)
    stored, size = _in_blocks(scale.float(), shape, block)
    return Grid("integer", stored, size, least, most, top, order=order)


def fp4_grid(local: Tensor, unit: Tensor, shape: Block, block: Block | None, *, bounded: bool = True) -> Grid:
    """NVFP4 under `local` scales and the scale `unit` of each whole weight."""
    unit = unit.float().abs().reshape(-1, 1, 1).nan_to_num(0.0)
    stored, size = _in_blocks(local.float(), shape, block)
    # an FP8 scale is off by up to 2^-4 of it; a group may also be made to end at 4, where that costs it less: 1.5 times
    return Grid("fp4", stored * unit, size, 0.93 / FP4_MAX, 1.07 / FP4_MAX, unit=unit, bounded=bounded, spare=1.5)


def shared_exponents_grid(exponents: Tensor, shape: Block, block: Block | None, *, is_fp4: bool = True) -> Grid:
    """MXFP4, or MXFP8, under the stored `exponents`."""
    top, power = (FP4_MAX, 4.0) if is_fp4 else (FP8_MAX, 256.0)
    stored, size = _in_blocks(shared_exponents(exponents), shape, block)
    # rounded down, the largest value of a group lies below twice the format's largest power; rounded up, above half top
    return Grid("mxfp4" if is_fp4 else "mxfp8", stored, size, 0.99 / (2 * power), 2.01 / top, top)


BEYOND_BY_ROUNDING = 0.01
"""Share of values beyond half a step up to which a row counts as rounded to nearest."""
BEST_ROWS = 0.25
"""A weight counts as rounded to nearest when this share of its rows does; GPTQ left a tenth so in a real weight."""
FAR_ROWS = 0.01
"""Share of the rows of a weight that was not rounded to nearest that GPTQ may move any distance."""
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
SCALES, ROW, GROUP = "by its scales", "in a row", "in a group"


@dataclass(frozen=True)
class Usage:
    """The largest share of its limit that was used (at most 1 for an honest weight), and where.

    `compensated` says that the weight was not rounded to nearest. GPTQ may move single rows and groups of such a weight
    any distance (one of a real model went 9 half steps), so that these alone show no damage.
    """

    share: float
    what: str
    row: int
    column: int
    compensated: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether a share above 1 shows damage."""
        return not self.compensated or self.what not in (ROW, GROUP)


@dataclass(frozen=True)
class OnGrid:
    """What is judged of weights whose grid is known: `lost` and `kept` of `Rounding`; of each row [weights, out] the
    share `beyond` half a step; of each group [weights, out, groups] squares of the error and of half steps (`limit`).

    `inside` [weights, out, 3] are the count, squares and products with the error of what the stored grid reaches;
    `reach` [weights, out, groups] are squares of that of `Rounding`.
    """

    lost: Tensor
    kept: Tensor
    beyond: Tensor
    squared: Tensor
    limit: Tensor
    inside: Tensor | None = None
    reach: Tensor | None = None


@dataclass(frozen=True)
class Sums:
    """All that is judged of weights beside a reference's, over the columns of every row [weights, out]: squares of the
    reference (`signal`), of the error (`noise`), and their products (`across`)."""

    signal: Tensor
    noise: Tensor
    across: Tensor
    on_grid: OnGrid | None = None


def sums_of(error: Tensor, original: Tensor, rounding: Rounding | None) -> Sums:
    """Of `error` = decoded - original, both float32 [weights, out, in]."""
    squared = error.square()
    rows = Sums(original.square().sum(-1), squared.sum(-1), (error * original).sum(-1))
    if rounding is None:
        return rows
    squared, limit, inside = rounding.ordered(squared), rounding.half_steps.square(), None
    if rounding.inside is not None:
        kept = rounding.ordered(original) * rounding.inside
        products = (kept * rounding.ordered(error)).sum(-1)
        inside = torch.stack([rounding.inside.sum(-1), kept.square().sum(-1), products], -1)
    far = None if rounding.reach is None else rounding.reach.square()
    beyond = (squared > (limit if far is None else far)).sum(-1) / squared.shape[-1]
    by_group = _by_group(squared, rounding.width), _by_group(limit, rounding.width)
    reach = None if far is None else _by_group(far, rounding.width)
    return replace(rows, on_grid=OnGrid(rounding.lost, rounding.kept, beyond, *by_group, inside, reach))


Summed = TypeVar("Summed", Sums, OnGrid)


def for_rows(sums: Summed, rows: int) -> Summed:
    """Room for the sums over so many rows, of what `sums` are of some of: kept one by one, they would lie between the
    large tensors of the next slabs, and memory would grow by those."""
    room: dict[str, Any] = {}
    for field in fields(sums):
        of = getattr(sums, field.name)
        is_tensor = isinstance(of, Tensor)
        room[field.name] = of.new_empty(len(of), rows, *of.shape[2:]) if is_tensor else of and for_rows(of, rows)
    return type(sums)(**room)


def put(sums: Summed, room: Summed, start: int, stop: int) -> None:
    """Copy the sums of rows [start, stop) to their place."""
    for field in fields(sums):
        of, place = getattr(sums, field.name), getattr(room, field.name)
        if isinstance(of, Tensor):
            place[:, start:stop] = of
        elif of is not None:
            put(of, place, start, stop)


def usages(sums: Sums, on_grid: OnGrid, rounding: Rounding) -> list[Usage]:
    """Of every weight, from the sums over all of its rows; `rounding` may be of some of them."""
    squared, limit = on_grid.squared.sum(-1), on_grid.limit.sum(-1)
    reach = on_grid.limit if on_grid.reach is None else on_grid.reach
    # an importance matrix outweighs columns in a quarter of a row's groups at most
    groups, rows = (on_grid.squared / reach).sqrt(), (4 * squared / (3 * limit + reach.sum(-1))).sqrt()
    worst, row = rows.max(1)
    usual = (ROW_TIMES_MEDIAN * rows.median(1).values).clamp(*ROW_LIMITS)
    # scales that cost no more than the tightest do are no fault, however large: the values may lie on their grid
    costs = sums.noise.sum(1, dtype=torch.float64) > on_grid.lost.sum(1, dtype=torch.float64)
    shares, place = groups.flatten(1).max(1)
    clean = on_grid.beyond.quantile(BEST_ROWS, 1) <= BEYOND_BY_ROUNDING
    if not bool(clean.all()):
        # the error that a large value leaves behind moves into other groups of its row, whose steps may be smaller
        moved = (on_grid.squared / torch.maximum(reach, reach.mean(2, keepdim=True))).sqrt()
        moved /= (GROUP_TIMES_MEDIAN * moved.median(1, keepdim=True).values).clamp(*GROUP_LIMITS)
        shares_moved, place_moved = moved.flatten(1).max(1)
        shares, place = torch.where(clean, shares, shares_moved), torch.where(clean, place, place_moved)
    judged = clean[:, None] | (rows <= rows.quantile(1 - FAR_ROWS, 1, keepdim=True))
    squares, limits = (torch.where(judged, each, 0.0).sum(1, dtype=torch.float64) for each in (squared, limit))
    whole = (squares / limits).sqrt()
    # the row of which least is left, where the grid does not itself cost about as much as there is
    resolved = limit < 0.9 * sums.signal
    off, erased = torch.where(resolved, sums.across / sums.signal, 0.0).abs().max(1)
    figures = (whole, row, worst / usual, costs, rounding.oversize, shares, place, resolved.any(1), off, erased, ~clean)
    table = zip(*(figure.tolist() for figure in figures), strict=True)
    count, order = groups.shape[2], rounding.order
    found = []
    for at, (all_, row_, of_row, has_cost, scales, of_group, place_, is_left, off_, erased_, moved) in enumerate(table):
        column = place_ % count * rounding.width
        column = column if order is None else int(order[at, column])
        entries = [
            Usage(all_ / (FLOATING_LIMIT if rounding.floating else WEIGHT_LIMIT), "as a whole", row_, 0, moved),
            Usage(of_row, ROW, row_, 0, moved),
            *([Usage(scales / SCALE_LIMIT, SCALES, 0, 0, moved)] if has_cost else []),
            Usage(of_group, GROUP, place_ // count, column, moved),
            *([Usage(off_ / (1 - LEAST_GAIN), "of what is left in a row", erased_, 0, moved)] if is_left else []),
        ]
        worst_first = sorted(entries, key=lambda entry: -entry.share)
        certain = (entry for entry in worst_first if entry.is_certain and entry.share > 1)
        found.append(next(certain, worst_first[0]))
    return found


def _by_group(values: Tensor, width: int) -> Tensor:
    """Sums [weights, out, groups] over `width` columns each; the last group may be partial."""
    spare = -values.shape[-1] % width
    padded = torch.nn.functional.pad(values, (0, spare)) if spare else values
    return padded.reshape(*padded.shape[:-1], -1, width).sum(-1)
