"""What a format does to the input of its module, as read from the checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ActivationScheme:
    """Dynamic quantization of a module's input, in groups along the last axis.

    - `nvfp4`: FP4 E2M1 values under an FP8 E4M3 scale per 16 values, itself under the static `global_scale`
      (values are divided by `local scale / global_scale`).
    - `fp8`: FP8 E4M3 values under a float scale per `group_size` values.
    """

    kind: str
    group_size: int
    global_scale: float | None = None
