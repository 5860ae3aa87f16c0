"""What vLLM is known to compute from a checkpoint instead of what is stored, so that it can be measured here.

`vllm` is one GPU, `vllm:4` four that split every layer (tensor parallel). Two things are known of it. It gives modules
that it holds as one a single global scale (`q36eval.checkpoints.fused`). And for its kernel Marlin it puts the scales
of experts' gate and up projections into the order of weights with one group of columns wherever a GPU's share of their
rows is no more than a group, though they have several groups (`size_k=layer.intermediate_size_per_partition` in
vllm/model_executor/layers/fused_moe/oracle/int_wna16.py of 0.26 to 0.33; https://github.com/vllm-project/vllm/pull/50196).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from q36eval.checkpoints.formats.parts import ceil_divide
from q36eval.checkpoints.fused import fused_groups, one_scale
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import UsageError

if TYPE_CHECKING:
    import torch

ENGINE = "vllm"
_NAMED = re.compile(r"vllm(?::([1-9][0-9]?))?")
MARLIN_BITS = (4, 8)
ROWS = 64
"""Marlin reads the scales of so many rows in an order of its own (`get_scale_perms` in vLLM's marlin_utils.py)."""


class Change(Protocol):
    """Another content of one stored part of a weight than its own."""

    @property
    def part(self) -> str:
        """The name of the part."""
        ...

    def of(self, stored: "torch.Tensor") -> "torch.Tensor":
        """What is computed with, of the same shape."""
        ...


@dataclass(frozen=True)
class OneScale:
    """The global scale that all members of a fused module get."""

    part: str
    value: float

    def of(self, stored: "torch.Tensor") -> "torch.Tensor":
        """That scale."""
        import torch

        return torch.full_like(stored, self.value)


@dataclass(frozen=True)
class Reordered:
    """Scales of rows along `axis` as Marlin reads them where they lie in the order of weights with one group."""

    part: str
    axis: int

    def of(self, stored: "torch.Tensor") -> "torch.Tensor":
        """The scales that rows get, a multiple of `ROWS`."""
        import torch

        order = torch.arange(stored.shape[self.axis], device=stored.device).view(-1, ROWS)[:, _order()].flatten()
        return stored.index_select(self.axis, order)


@cache
def _order() -> tuple[int, ...]:
    """Of 64 rows, whose scale each gets: stored in the one order and read in the other."""
    several = [lane + 8 * step for lane in range(8) for step in range(8)]
    one = [2 * lane + at for lane in range(4) for at in (0, 1, 8, 9, 16, 17, 24, 25)]
    stored = [*one, *(row + 32 for row in one)]
    gets = dict(zip(several, stored, strict=True))
    return tuple(gets[row] for row in range(ROWS))


def check_as_served(as_served: str | None) -> None:
    """Refuse an engine whose ways are not known here.

    Raises:
        UsageError: no such engine.
    """
    if as_served is not None and _NAMED.fullmatch(as_served) is None:
        raise UsageError(
            f"What {as_served!r} makes of a checkpoint is not emulated; known: {ENGINE}, and {ENGINE}:4 for four GPUs "
            f"that split every layer."
        )


def engine_of(as_served: str | None) -> str | None:
    """The engine alone."""
    return None if as_served is None else as_served.partition(":")[0]


def changes_as_served(weights: Mapping[str, LogicalWeight], as_served: str | None) -> dict[str, Change]:
    """Of each weight that is computed from something else than what is stored, what that is; nothing where None."""
    if as_served is None:
        return {}
    check_as_served(as_served)
    gpus = int(as_served.partition(":")[2] or 1)
    changes: dict[str, Change] = {}
    for members in fused_groups(weights).values():
        scales = one_scale(members)
        if scales is not None:
            part, stored, chosen = scales
            changes |= {
                w.name: OneScale(part, chosen) for w, value in zip(members, stored, strict=True) if value != chosen
            }
        for weight in members:
            grouped = grouped_scales(weight)
            if grouped is not None and grouped.gpus <= gpus:
                changes[weight.name] = grouped.reordered
    return changes


@dataclass(frozen=True)
class GroupedScales:
    """An expert's gate or up projection in integers with several groups of `group` columns, and `rows` rows, which are
    a multiple of `ROWS`: others vLLM fills up or leaves to another kernel."""

    rows: int
    group: int
    reordered: Reordered

    @property
    def gpus(self) -> int:
        """The least number of GPUs on which vLLM reorders these scales: a share of the rows is no more than a group."""
        return ceil_divide(self.rows, self.group)


def grouped_scales(weight: LogicalWeight) -> GroupedScales | None:
    """What of a weight its headers say of that; None for any other weight, and where they say it of no such one."""
    projection = weight.name.removesuffix(".weight").rpartition(".")[2]
    if weight.tensor_class != "routed experts" or projection not in ("gate_proj", "up_proj"):
        return None
    compressed = getattr(weight.scheme.compressed, "weights", None)
    bits = weight.scheme.setting("bits") or getattr(compressed, "num_bits", None)
    entries = dict(weight.parts)
    by_columns = "scales" in entries
    values = entries.get("qweight" if by_columns else "weight_packed")
    scales = entries.get("scales" if by_columns else "weight_scale")
    if values is None or scales is None or values.dtype != "I32" or bits not in MARLIN_BITS:
        return None
    if len(values.shape) != 2 or len(scales.shape) != 2:
        return None
    if by_columns:
        groups, rows = scales.shape
        columns = values.shape[0] if weight.scheme.format == "awq" else values.shape[0] * 32 // bits
    else:
        rows, groups, columns = values.shape[0], scales.shape[1], values.shape[1] * 32 // bits
    if groups < 2 or not rows or rows % ROWS or not columns:
        return None
    reordered = Reordered("scales", 1) if by_columns else Reordered("weight_scale", 0)
    return GroupedScales(rows, ceil_divide(columns, groups), reordered)
