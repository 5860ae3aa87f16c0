"""Weights stored as they are: BF16, FP16 or FP32."""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.parts import Parts
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch


def shape(parts: Parts, scheme: Scheme) -> tuple[int, ...]:
    """The tensor's own shape."""
    return tuple(parts["weight"].shape)


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The tensor itself.

    Raises:
        CorruptCheckpointError: it is stored as integers or 8-bit floats, which mean nothing without a scale.
    """
    import torch

    weight = parts["weight"]
    if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise CorruptCheckpointError(
            "scale-missing", f"stored as {weight.dtype} without a scale, and not quantized by the configuration"
        )
    return weight


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """Rows [start, stop)."""
    return {"weight": parts["weight"][start:stop]}
