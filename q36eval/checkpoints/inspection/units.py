"""The weights of a checkpoint one by one, experts apart, whether they are stored apart or fused into one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.inspection.expected import fused_place
from q36eval.checkpoints.names import tensor_class
from q36eval.checkpoints.weights import LogicalWeight

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Unit:
    """One weight as the expected shapes name it; `expert` and `projection` say which part of a fused tensor it is."""

    name: str
    weight: LogicalWeight
    expert: int | None = None
    projection: str = ""

    @property
    def tensor_class(self) -> str:
        """The class of tensor, as recipes speak of them."""
        return tensor_class(self.name)

    @property
    def is_plain(self) -> bool:
        """Stored as it is, not quantized."""
        return set(dict(self.weight.parts)) == {"weight"} and self.weight.scheme.format == "plain"

    @property
    def stored_bytes(self) -> int:
        """What it takes in the checkpoint, scales included."""
        if self.expert is None:
            return self.weight.stored_bytes
        entry = self.weight.checkpoint.tensors[self.weight.parts[0][1]]
        return entry.n_bytes // entry.shape[0] // (1 if self.projection == "down" else 2)

    @property
    def plain_shape(self) -> tuple[int, ...] | None:
        """The shape of a plain weight, from the header alone; None for a quantized one."""
        if not self.is_plain:
            return None
        shape = self.weight.checkpoint.tensors[self.weight.parts[0][1]].shape
        if self.expert is None:
            return shape
        return shape[1:] if self.projection == "down" else (shape[1] // 2, *shape[2:])

    def read_parts(self) -> "dict[str, torch.Tensor]":
        """The stored parts; of a fused tensor only what belongs to this weight."""
        if self.expert is None:
            return self.weight.read_parts()
        rows = self.weight.checkpoint.read_row(self.weight.parts[0][1], self.expert)
        if self.projection != "down":
            half = rows.shape[0] // 2
            rows = rows[:half] if self.projection == "gate" else rows[half:]
        return {"weight": rows}

    def decode(self, parts: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        """The weight, from its parts.

        Raises:
            CorruptCheckpointError: the stored parts do not fit together.
        """
        return self.weight.decode_light(parts)


def units_of(weights: Mapping[str, LogicalWeight], expected: Mapping[str, tuple[int, ...]]) -> dict[str, Unit]:
    """Every stored weight by the name it is expected under; weights nobody expects keep their own name."""
    found = {name: Unit(name, weight) for name, weight in weights.items()}
    for name in expected:
        place = fused_place(name)
        if place is None or name in weights or place[0] not in weights:
            continue
        fused, expert, projection = place
        shape = weights[fused].checkpoint.tensors[weights[fused].parts[0][1]].shape
        if len(shape) == 3 and expert < shape[0]:
            found[name] = Unit(name, weights[fused], expert, projection)
            found.pop(fused, None)
    return found
