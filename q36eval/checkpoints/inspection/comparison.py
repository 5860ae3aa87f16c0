"""Weights that are stored alike against the reference's, some rows at a time.

`SLAB` values are decoded, rounded and compared at once, so that the dozen float32 copies stay in the processor's cache:
several small weights together, or some rows of a large one. Sums over columns are in float32, over rows in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from q36eval.checkpoints.formats import ROWS_MULTIPLE
from q36eval.checkpoints.inspection.gguf_grids import rounding_to_blocks
from q36eval.checkpoints.inspection.grids import (
    Grid,
    Rounding,
    Sums,
    Usage,
    Whole,
    for_rows,
    put,
    stored_grid,
    sums_of,
    usages,
)
from q36eval.checkpoints.inspection.stored_schemes import declared_bits, declared_block, stored_label
from q36eval.checkpoints.weights import LogicalWeight

SLAB = 2**18
"""Values at once: 16 MiB of temporary copies a thread."""
LEAST_INSIDE = 0.5
"""Share of a weight's values within the stored scales' reach, below which all of them are compared."""
Rows = Callable[[int, int], Tensor]
"""Rows [start, stop) of weights, float32 [weights, rows, in]."""


@dataclass(frozen=True)
class WeightError:
    """One weight against the reference's. `usage` and `honest` are None where the grid is not known.

    `gain` is <branch, reference> / <reference, reference>: 1 unless the weight as a whole is larger or smaller; of
    integers over the values that the stored scales reach.
    `honest` is the relative error that rounding the reference's weight to nearest on its own grid costs, and
    `honest_gain` the gain that this has.
    """

    name: str
    tensor_class: str
    stored: str
    relative_error: float
    gain: float
    honest: float | None = None
    honest_gain: float = 1.0
    usage: Usage | None = None

    @property
    def cost(self) -> float:
        """The error in units of what honest rounding of this very weight costs; relative where that is not known."""
        return self.relative_error if self.honest is None else self.relative_error / self.honest

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise, in decibels."""
        return math.inf if self.relative_error == 0 else -20 * math.log10(self.relative_error)


def as_rows(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a weight of any shape: a vector is one row, more axes are flattened behind the first."""
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def slabs(shape: Sequence[int], height: int = 1) -> list[tuple[int, int]]:
    """Runs of rows that are worked on at once: all, or multiples of `ROWS_MULTIPLE` (of experts stored together: any
    number) and of blocks of `height`."""
    rows, columns = as_rows(shape)
    multiple = math.lcm(ROWS_MULTIPLE if len(shape) < 3 else 1, height)
    step = max(SLAB // max(columns, 1) // multiple, 1) * multiple
    return [(start, min(start + step, rows)) for start in range(0, rows, step)] or [(0, rows)]


def block_height(units: Sequence[LogicalWeight], rows: int) -> int:
    """How many rows share a scale, for one that several but not all do."""
    block = declared_block(units[0].scheme)
    return 1 if block is None or block[0] >= rows else block[0]


def compared(
    units: Sequence[LogicalWeight],
    parts: Mapping[str, Tensor],
    shape: Sequence[int],
    decoded: Rows,
    original: Rows,
) -> list[WeightError]:
    """The errors of weights of one `shape` that are stored alike, as stored in `parts` [weights, …]."""
    first, together = units[0], 1
    if first.scheme.format == "mxfp4":
        experts, columns, together = shape
        parts = {part: tensor.flatten(1, 2).flatten(2) for part, tensor in parts.items()}
        decoded, original = (_by_outputs(rows, columns, together) for rows in (decoded, original))
        shape = experts * together, columns
    out, columns = as_rows(shape)
    scheme, label = first.scheme, stored_label(first, tuple(shape))
    has_blocks = not first.is_plain and scheme.format == "gguf"  # of which one weight is rounded at a time
    grid = None
    if not first.is_plain and not has_blocks and len(shape) == 2:
        grid = stored_grid(parts, (out, columns), declared_block(scheme), declared_bits(scheme))
    height = grid.block[0] if grid is not None and grid.stored.shape[1] > 1 else 1
    runs = [(0, out)] if len(units) > 1 or has_blocks else slabs(shape, math.lcm(height, together))
    whole = None if grid is None else _whole(grid, original, runs)
    sums: Sums | None = None
    rounding: Rounding | None = None
    for start, stop in runs:
        wanted = original(start, stop)
        if grid is not None and whole is not None:
            rounding = grid.rounding(wanted, whole, start)
        elif has_blocks:
            rounding = rounding_to_blocks({part: tensor[0] for part, tensor in parts.items()}, scheme, wanted[0])
        some = sums_of(decoded(start, stop) - wanted, wanted, rounding)
        sums = some if (start, stop) == (0, out) else for_rows(some, out) if sums is None else sums
        if sums is not some:
            put(some, sums, start, stop)
    assert sums is not None  # for the type checker: there is a slab
    return _errors(units, label, sums, rounding, out * columns)


def nearest(unit: LogicalWeight, wanted: Tensor) -> Tensor:
    """`wanted` [out, in] rounded to the grid of `unit`; as it is where that is not known."""
    parts = {part: tensor[None] for part, tensor in unit.read_parts().items()}
    known = wanted.ndim == 2 and not unit.is_plain and unit.scheme.format != "gguf"
    shape = as_rows(wanted.shape)
    grid = stored_grid(parts, shape, declared_block(unit.scheme), declared_bits(unit.scheme)) if known else None
    if grid is None:
        return wanted
    runs = slabs(shape, grid.block[0] if grid.stored.shape[1] > 1 else 1)
    whole = _whole(grid, lambda start, stop: wanted[None, start:stop], runs)
    rows = torch.cat([grid.rounding(wanted[None, start:stop], whole, start).nearest[0] for start, stop in runs])
    return rows if grid.order is None else torch.empty_like(rows).scatter_(1, grid.order.expand_as(rows), rows)


def _by_outputs(of_experts: Rows, columns: int, out: int) -> Rows:
    """The rows of experts [experts, in, out], turned: all outputs [weights, experts * out, in], along which scales lie.

    They are asked for from a whole expert to a whole expert.
    """

    def rows(start: int, stop: int) -> Tensor:
        some = of_experts(start // out, stop // out)
        return some.reshape(len(some), -1, columns, out).transpose(2, 3).reshape(len(some), -1, columns)

    return rows


def _whole(grid: Grid, original: Rows, runs: Sequence[tuple[int, int]]) -> Whole:
    """What all rows together decide."""
    if len(runs) == 1:
        return grid.whole(original(*runs[0]))
    largest, mean_square = torch.zeros_like(grid.stored), torch.zeros_like(grid.stored[:, 0, 0])
    for start, stop in runs:
        some = grid.whole(original(start, stop))
        mean_square += some.mean_square * ((stop - start) / runs[-1][1])
        first = start // grid.block[0]
        place = largest[:, first : first + some.largest.shape[1]]
        torch.maximum(place, some.largest, out=place)  # one block may have the rows of all
    whole = Whole(mean_square, largest)
    return replace(whole, oversize=grid.oversize(whole))


def _errors(
    units: Sequence[LogicalWeight], label: str, sums: Sums, rounding: Rounding | None, values: int
) -> list[WeightError]:
    """Each weight's figures from the sums over its rows."""
    totals, on_grid = _totals(sums), sums.on_grid
    used = [None] * len(units) if rounding is None or on_grid is None else usages(sums, on_grid, rounding)
    errors = []
    for at, (unit, usage) in enumerate(zip(units, used, strict=True)):
        total = {name: figures[at] for name, figures in totals.items()}
        signal, noise = math.sqrt(total["signal"]), math.sqrt(total["noise"])
        relative = noise / signal if signal else (0.0 if noise == 0 else math.inf)
        relative = relative if math.isfinite(relative) else math.inf
        gain = 1 + total["across"] / total["signal"] if signal else 1.0
        if usage is None or not math.isfinite(relative):
            errors.append(WeightError(unit.name, unit.tensor_class, label, relative, gain))
            continue
        if total.get("inside", 0) / values >= LEAST_INSIDE:
            # AutoRound learns how much to clip of the largest values, which leaves the others as large as they were
            within = total["inside_signal"]
            gain = 1 + total["inside_across"] / within if within else gain
        # what is exact on its own grid still costs a hundredth of half a step: the scale's own rounding
        cost = max(math.sqrt(total["lost"]), math.sqrt(total["limit"]) / 100)
        honest = cost / signal if signal else 1.0
        honest_gain = total["kept"] / total["signal"] if signal else 1.0
        errors.append(WeightError(unit.name, unit.tensor_class, label, relative, gain, honest, honest_gain, usage))
    return errors


def _totals(sums: Sums) -> dict[str, list[float]]:
    """Every sum over all rows, one figure per weight."""
    there = {"signal": sums.signal, "noise": sums.noise, "across": sums.across}
    if sums.on_grid is not None:
        there |= {"lost": sums.on_grid.lost, "kept": sums.on_grid.kept, "limit": sums.on_grid.limit}
        if sums.on_grid.inside is not None:
            inside = sums.on_grid.inside.unbind(-1)
            there |= zip(("inside", "inside_signal", "inside_across"), inside, strict=True)
    table = torch.stack([figure.flatten(1).sum(1, dtype=torch.float64) for figure in there.values()])
    return dict(zip(there, table.tolist(), strict=True))
