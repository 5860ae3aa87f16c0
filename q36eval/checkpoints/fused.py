"""Experts that are stored fused, as transformers 5 holds them: which rows of a fused tensor are which expert's weight.

`experts.gate_up_proj` [E, 2I, H] has the gate projections above the up projections, `experts.down_proj` is [E, H, I].
Fine-grained FP8 adds `…_scale_inv` [E, 2I / block, H / block] (per tensor: [E, 1, 1], or [E, 2, 1] with one scale per
half) and, with static inputs, `…_activation_scale` [E]: the parameters of transformers' `FP8Experts`, written by
`save_pretrained(save_original_format=False)`.
"""

from collections.abc import Mapping

from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.names import fused_experts
from q36eval.checkpoints.schemes import Scheme
from q36eval.checkpoints.sizes import MOST_EXPERTS
from q36eval.errors import CorruptCheckpointError, UsageError

Entries = Mapping[str, TensorEntry]


def expert_entries(module: str, entries: Entries, scheme: Scheme) -> dict[str, dict[str, TensorEntry]]:
    """Where the parts of every expert's weight lie, by canonical weight name.

    A scale that gate and up share belongs to both.

    Raises:
        CorruptCheckpointError: the parts are not of as many experts, or do not divide into gate and up.
        UsageError: the gate and up projections of an expert share blocks of scales.
    """
    fused = fused_experts(module)
    if fused is None:
        raise ValueError(f"{module} is no fused expert parameter")
    experts, projections = fused
    count = _expert_count(entries)
    _check_halves(entries, scheme, len(projections))
    return {
        f"{experts}.{expert}.{projection}_proj.weight": {
            part: _cut(entry.row(expert), position, len(projections)) for part, entry in entries.items()
        }
        for expert in range(count)
        for position, projection in enumerate(projections)
    }


def _expert_count(entries: Entries) -> int:
    values = entries["weight"]
    if len(values.shape) != 3:
        raise CorruptCheckpointError(
            f"{values.file}: tensor {values.name!r} has shape {list(values.shape)}, [experts, rows, columns] is needed."
        )
    if 0 in values.shape or values.shape[0] > MOST_EXPERTS:
        raise CorruptCheckpointError(
            f"{values.file}: tensor {values.name!r} has shape {list(values.shape)}, which no layer's experts have."
        )
    for entry in entries.values():
        if entry.shape[:1] != values.shape[:1]:
            raise CorruptCheckpointError(
                f"{entry.file}: tensor {entry.name!r} has shape {list(entry.shape)}, {values.name!r} has "
                f"{values.shape[0]} experts."
            )
    return values.shape[0]


def _check_halves(entries: Entries, scheme: Scheme, halves: int) -> None:
    """Both halves have the same number of rows and, where several rows share a scale, scales of their own."""
    for entry in entries.values():
        rows = entry.shape[1] if len(entry.shape) > 1 else 1
        if rows % halves and rows != 1:
            raise CorruptCheckpointError(f"{entry.file}: the {rows} rows of {entry.name!r} are no gate and up halves.")
    block, rows = scheme.setting("block"), entries["weight"].shape[1]
    if block is not None and rows > block[0] and (rows // halves) % block[0]:
        raise UsageError(
            f"{entries['weight'].file}: gate and up of {entries['weight'].name!r} ({rows // halves} rows each) share "
            f"blocks of {block[0]} rows, which is not decoded; store the experts one by one."
        )


def _cut(entry: TensorEntry, position: int, halves: int) -> TensorEntry:
    """One half of an expert's rows; what is a single value or row belongs to both."""
    if halves == 1 or not entry.shape or entry.shape[0] == 1:
        return entry
    size = entry.shape[0] // halves
    return entry.rows(position * size, (position + 1) * size)
