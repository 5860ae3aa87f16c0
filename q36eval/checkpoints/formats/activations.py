"""What a format does to the input of its module, as read from the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.slabs import need_dtypes, need_one_value
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

WHOLE_ROW = 0
"""A `group_size` that stands for all features of a token."""


@dataclass(frozen=True)
class ActivationScheme:
    """Quantization of a module's input, in groups of `group_size` along the last axis.

    - `nvfp4`: FP4 E2M1 values under an FP8 E4M3 scale per 16 values, itself under the static `global_scale`
      (values are divided by `local scale / global_scale`).
    - `fp8`: FP8 E4M3 values under a float scale per group; static under `static_scale` where that is given.
    - `int8`: integers of 8 bits, symmetric, under a float scale per group or under `static_scale`.
    - `int8-asymmetric`: the same with a zero-point per group, always dynamic.
    """

    kind: str
    group_size: int
    global_scale: float | None = None
    static_scale: float | None = None


def stored_scalar(parts: Mapping[str, "torch.Tensor"], name: str, what: str) -> float:
    """The one value of a stored scale of activations.

    Raises:
        CorruptCheckpointError: it is missing, holds several values, or is not a positive number.
    """
    if name not in parts:
        raise CorruptCheckpointError(f"{name} is missing, which its {what} activations need")
    need_dtypes({name: parts[name]}, {})
    need_one_value(name, parts[name])
    value = float(parts[name].float().reshape(()))
    if not 0 < value < float("inf"):
        raise CorruptCheckpointError(f"{name} is {value}, a positive number is needed")
    return value
