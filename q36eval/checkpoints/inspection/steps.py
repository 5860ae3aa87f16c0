"""How much of what honest rounding can cost a weight's error uses: as a whole, in each row and in each group.

Everything is in half steps of the grid the reference weight calls for (`grids`), as the root of squared errors over
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

from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.grids import Rounding

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
    found = [
        Usage(whole / (FLOATING_LIMIT if rounding.floating else WEIGHT_LIMIT), "as a whole", row, 0),
        Usage(float(rows[row]) / _between(ROW_TIMES_MEDIAN * float(rows.median()), ROW_LIMITS), "in a row", row, 0),
    ]
    found.append(Usage(rounding.oversize / SCALE_LIMIT, SCALES, 0, 0))
    beyond = (squared > limit).sum(1) / squared.shape[1]
    if float(beyond.quantile(BEST_ROWS)) <= BEYOND_BY_ROUNDING:
        shares = groups
    else:
        # the error that a large value leaves behind moves into other groups of its row, whose steps may be smaller
        groups = (sums[0] / torch.maximum(sums[1], sums[1].mean(1, keepdim=True))).sqrt()
        shares = groups / (GROUP_TIMES_MEDIAN * groups.median(0).values).clamp(*GROUP_LIMITS)
    row, group = divmod(int(shares.argmax()), shares.shape[1])
    found.append(Usage(float(shares[row, group]), "in a group", row, rounding.column(group * rounding.width)))
    found += _erased(error, original, sums[1].sum(1))
    return max(found, key=lambda entry: entry.share)


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
    told = honest < 0.9 * signal
    if not bool(told.any()):
        return []
    off = torch.where(told, torch.einsum("oi,oi->o", error, original) / signal, 0.0).abs()
    row = int(off.argmax())
    return [Usage(float(off[row]) / (1 - LEAST_GAIN), "in a row", row, 0)]
