"""The weights of a checkpoint one by one, experts apart, whether they are stored apart or fused into one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.weights import LogicalWeight

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Unit:
    """One weight as the expected shapes name it."""

    weight: LogicalWeight

    @property
    def name(self) -> str:
        """The canonical parameter name."""
        return self.weight.name

    @property
    def tensor_class(self) -> str:
        """The class of tensor, as recipes speak of them."""
        return self.weight.tensor_class

    @property
    def is_plain(self) -> bool:
        """Stored as it is, not quantized."""
        return set(dict(self.weight.parts)) == {"weight"} and self.weight.scheme.format == "plain"

    @property
    def stored_bytes(self) -> int:
        """What it takes in the checkpoint, scales included."""
        return self.weight.stored_bytes

    @property
    def plain_shape(self) -> tuple[int, ...] | None:
        """The shape of a plain weight, from the header alone; None for a quantized one."""
        return dict(self.weight.parts)["weight"].shape if self.is_plain else None

    def read_parts(self) -> "dict[str, torch.Tensor]":
        """The stored parts; of a fused tensor only what belongs to this weight."""
        return self.weight.read_parts()

    def decode(self, parts: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        """The weight, from its parts.

        Raises:
            CorruptCheckpointError: the stored parts do not fit together.
        """
        return self.weight.decode_light(parts)


def units_of(weights: Mapping[str, LogicalWeight]) -> dict[str, Unit]:
    """Every stored weight by its name."""
    return {name: Unit(weight) for name, weight in weights.items()}
