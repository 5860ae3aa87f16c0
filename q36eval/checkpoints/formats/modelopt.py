"""NVFP4 as Model Optimizer serializes it: value = fp4 · (fp8 `weight_scale` · float32 `weight_scale_2`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.activations import ActivationScheme
from q36eval.checkpoints.schemes import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

GROUP_SIZE = 16


def decode(parts: Mapping[str, "torch.Tensor"], scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] in float32."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    packed, local = parts["weight"], parts["weight_scale"]
    rows, columns = packed.shape[0], packed.shape[1] * 2
    if packed.dtype != torch.uint8 or tuple(local.shape) != (rows, columns // GROUP_SIZE):
        raise CorruptCheckpointError(f"NVFP4 weight {packed.dtype} {tuple(packed.shape)} and scale do not fit")
    values = unpack_fp4_from_uint8(packed, rows, columns, dtype=torch.float32)
    scale = local.float() * parts["weight_scale_2"].float().reshape(())
    decoded: torch.Tensor = (values.reshape(rows, -1, GROUP_SIZE) * scale.unsqueeze(-1)).flatten(-2)
    return decoded


def activations(parts: Mapping[str, "torch.Tensor"], scheme: Scheme) -> ActivationScheme | None:
    """NVFP4 activations under `input_scale`, the reciprocal of a global scale; None for weight-only storage."""
    if "input_scale" not in parts:
        return None
    input_scale = parts["input_scale"].float().reshape(())
    return ActivationScheme("nvfp4", GROUP_SIZE, float(1.0 / input_scale))
