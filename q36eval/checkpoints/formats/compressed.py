"""compressed-tensors formats, decoded by the library's own single-tensor decoders.

NVFP4: value = fp4 · (fp8 local scale / float32 global scale), computed in float32.
FP8 and integers: value = q · scale, computed in the scale's dtype.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.formats.activations import ActivationScheme
from q36eval.checkpoints.schemes import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

Parts = Mapping[str, "torch.Tensor"]


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in]."""
    import torch
    from compressed_tensors.compressors import BaseCompressor

    if "weight_packed" in parts and parts["weight_packed"].dtype != torch.uint8:
        raise CorruptCheckpointError(f"weight_packed is stored as {parts['weight_packed'].dtype}, not uint8")
    packed = "weight_packed" in parts
    rows, columns = parts["weight_packed" if packed else "weight"].shape
    _check_scale_shape(rows, columns * (2 if packed else 1), parts["weight_scale"], scheme.compressed.weights)
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    weight: torch.Tensor = compressor.decompress(dict(parts), scheme.compressed)["weight"]
    return weight


def decode_packed(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] of integers packed into int32; activation-ordered groups are followed."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    weights = scheme.compressed.weights
    shape = torch.Size(int(size) for size in parts["weight_shape"])
    words = -(-shape[1] * weights.num_bits // 32)
    if tuple(parts["weight_packed"].shape) != (shape[0], words):
        raise CorruptCheckpointError(f"weight_packed does not hold {list(shape)} values of {weights.num_bits} bits")
    _check_scale_shape(shape[0], shape[1], parts["weight_scale"], weights)
    q: torch.Tensor = unpack_from_int32(parts["weight_packed"], weights.num_bits, shape)
    scale, zero = parts["weight_scale"], parts.get("weight_zero_point")
    group_size = weights.group_size or shape[1]
    in_order = torch.arange(shape[1], device=scale.device) // group_size
    groups = parts.get("weight_g_idx", in_order).long()
    if groups.shape != (shape[1],) or int(groups.min()) < 0 or int(groups.max()) >= scale.shape[1]:
        raise CorruptCheckpointError(f"weight_g_idx does not name one of {scale.shape[1]} groups for each column")
    values = q.to(scale.dtype)
    if zero is not None:
        values -= unpack_from_int32(zero, weights.num_bits, scale.shape, packed_dim=0).to(scale.dtype)[:, groups]
    return values * scale[:, groups]


def _check_scale_shape(rows: int, columns: int, scale: "torch.Tensor", weights: Any) -> None:
    """Scales that do not fit are refused here, where broadcasting would hide them."""
    strategy = str(getattr(weights.strategy, "value", weights.strategy))
    if strategy == "block":
        height, width = weights.block_structure
        expected = (-(-rows // height), -(-columns // width))
    elif strategy in ("group", "tensor_group"):
        expected = (rows, -(-columns // weights.group_size))
    elif strategy == "channel":
        expected = (rows, 1)
    else:
        return
    if tuple(scale.shape) != expected:
        raise CorruptCheckpointError(f"weight_scale has shape {tuple(scale.shape)}, {expected} is needed")


def activations(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    """The input quantization of the module, None where activations stay as they are.

    Raises:
        UsageError: a kind of activation quantization that is not emulated.
        CorruptCheckpointError: NVFP4 activations without their global scale.
    """
    inputs = scheme.compressed.input_activations
    # An embedding looks rows up: its input is token ids, there is nothing to quantize.
    if inputs is None or inputs.num_bits == 16:
        return None
    strategy = str(getattr(inputs.strategy, "value", inputs.strategy))
    if (inputs.type, inputs.num_bits, strategy, str(getattr(inputs.dynamic, "value", inputs.dynamic))) == (
        "float",
        4,
        "tensor_group",
        "local",
    ):
        if "input_global_scale" not in parts:
            raise CorruptCheckpointError("input_global_scale is missing, which its NVFP4 activations need")
        return ActivationScheme("nvfp4", inputs.group_size, float(parts["input_global_scale"].float().reshape(-1)[0]))
    if (inputs.type, inputs.num_bits, strategy, inputs.dynamic) == ("float", 8, "group", True):
        return ActivationScheme("fp8", inputs.group_size)
    raise UsageError(
        f"activations quantized as {inputs.type}{inputs.num_bits} per {strategy} are not emulated; "
        "load with emulate_activations=False to judge the weights alone"
    )
