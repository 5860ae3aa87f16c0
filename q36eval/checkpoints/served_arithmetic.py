"""What vLLM is known to compute from a checkpoint instead of what is stored, so that it can be measured here.

`vllm` is one GPU, `vllm:4` four that split every layer (tensor parallel). Two things are known of it. It gives modules
that it holds as one a single global scale (`q36eval.checkpoints.fused`). And for its kernel Marlin it puts the scales
of experts' gate and up projections into the order of weights with one group of columns where a GPU's share of their
rows is as large as a group, though they have several groups (`size_k=layer.intermediate_size_per_partition` in
vllm/model_executor/layers/fused_moe/oracle/int_wna16.py of 0.26 to 0.33; https://github.com/vllm-project/vllm/pull/50196).
A smaller share it refuses or gives to another kernel (`check_moe_marlin_supports_layer`). What it does to
the KL was seen with 0.26 on H100s; 0.32 prefers another kernel, Humming, on that GPU.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from q36eval.checkpoints.fused import fused_groups, one_scale
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import UsageError

if TYPE_CHECKING:
    import torch

ENGINE = "vllm"
_NAMED = re.compile(r"vllm(?::([1-9][0-9]?))?")
MOST_GPUS = 8
"""What takes more of them is not foreseen: one machine has so many."""
MARLIN_BITS, MARLIN_GROUPS, MARLIN_COLUMNS = (4, 8), (32, 64, 128), 128
"""The bits and groups that it computes, and of what the columns are a multiple."""
ROWS = 64
"""Marlin reads the scales of so many rows in an order of its own (`get_scale_perms` in vLLM's marlin_utils.py); a share
of fewer is filled up with zeros."""


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
    """Scales of rows along `axis`, in shares of `share`, as Marlin reads what lies in the order of one group."""

    part: str
    axis: int
    share: int

    def of(self, stored: "torch.Tensor") -> "torch.Tensor":
        """The scales that rows get; 0 where that of a row that fills up a share is read."""
        import torch

        shares = stored.movedim(self.axis, -1).reshape(-1, self.share)
        filled = torch.nn.functional.pad(shares, (0, -self.share % ROWS))
        taken = filled.reshape(-1, ROWS)[:, _order()].reshape(filled.shape)[:, : self.share]
        others = [size for axis, size in enumerate(stored.shape) if axis != self.axis]
        return taken.reshape(*others, stored.shape[self.axis]).movedim(-1, self.axis)


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
            "option-value",
            f"What {as_served!r} makes of a checkpoint is not emulated; known: {ENGINE}, and {ENGINE}:4 for four GPUs "
            f"that split every layer.",
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
            if grouped is not None and grouped.gpus == gpus:
                changes[weight.name] = grouped.reordered
    return changes


@dataclass(frozen=True)
class GroupedScales:
    """An expert's gate or up projection in integers with several groups of `group` columns, and `rows` rows."""

    rows: int
    group: int
    part: str
    axis: int

    @property
    def gpus(self) -> int:
        """The number of GPUs on which vLLM reorders these scales: a share of the rows is as large as a group."""
        return self.rows // self.group

    @property
    def reordered(self) -> Reordered:
        """What it computes with there."""
        return Reordered(self.part, self.axis, self.group)


def grouped_scales(weight: LogicalWeight) -> GroupedScales | None:
    """What of a weight its headers say of that; None for any other weight, and where Marlin does not compute it."""
    projection = weight.name.removesuffix(".weight").rpartition(".")[2]
    if weight.tensor_class != "routed experts" or projection not in ("gate_proj", "up_proj"):
        return None
    entries = dict(weight.parts)
    found = _by_columns(weight.scheme, entries) if "qweight" in entries else _by_rows(weight.scheme, entries)
    if found is None:
        return None
    rows, columns, groups, part, axis = found
    group = columns // groups if groups > 1 and columns % groups == 0 else 0
    if group not in MARLIN_GROUPS or columns % MARLIN_COLUMNS or rows % group or not rows:
        return None
    return GroupedScales(rows, group, part, axis)


_Found = tuple[int, int, int, str, int]
"""Rows, columns, groups of columns, the part with the scales and the axis of the rows in it."""


def _by_columns(scheme: Scheme, entries: Mapping[str, TensorEntry]) -> _Found | None:
    """Of GPTQ and AWQ; vLLM has no GPTQ with zero points in Marlin."""
    bits, scales, words = scheme.setting("bits"), entries.get("scales"), entries["qweight"].shape
    if bits not in MARLIN_BITS or scales is None or len(scales.shape) != 2 or len(words) != 2:
        return None
    groups, rows = scales.shape
    if scheme.format == "awq":
        return (rows, words[0], groups, "scales", 1) if words[1] * 32 // int(bits) == rows else None
    if scheme.format != "gptq" or not scheme.setting("sym") or words[1] != rows:
        return None
    return rows, words[0] * 32 // int(bits), groups, "scales", 1


def _by_rows(scheme: Scheme, entries: Mapping[str, TensorEntry]) -> _Found | None:
    """Of compressed-tensors, weight-only and symmetric: others vLLM gives to other methods."""
    weights = getattr(scheme.compressed, "weights", None)
    bits, values, scales = getattr(weights, "num_bits", None), entries.get("weight_packed"), entries.get("weight_scale")
    if values is None or scales is None or values.dtype != "I32" or weights is None or bits not in MARLIN_BITS:
        return None
    if not weights.symmetric or scheme.compressed.input_activations is not None:
        return None
    if len(values.shape) != 2 or len(scales.shape) != 2 or scales.shape[0] != values.shape[0]:
        return None
    return values.shape[0], values.shape[1] * 32 // int(bits), scales.shape[1], "weight_scale", 0
