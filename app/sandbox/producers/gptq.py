"""GPTQ serialization of what llm-compressor's GPTQ computed.

GPTQModel 7.7.0 itself did not run on two CPU cores: its thread pool refuses them. The algorithm is the same; only the
container is written here: `qweight`, `qzeros`, `scales`, `g_idx` per expert projection, version 1 (`checkpoint_format`
`gptq`, which stores zero-points minus one).
"""

from typing import TYPE_CHECKING, Any

from q36eval.app.sandbox.branches_int2 import tensor_bytes
from q36eval.app.sandbox.branches_raw import RawTensor

if TYPE_CHECKING:
    import torch

Tensors = dict[str, RawTensor]
BITS = 4
GROUP_SIZE = 128
ZERO = 2 ** (BITS - 1)


def write_gptq(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and configuration of the branch, from pack-quantized tensors and the reference's configuration."""
    modules = {name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")}
    packed_parts = {
        f"{module}.{part}" for module in modules for part in ("weight_packed", "weight_scale", "weight_shape")
    }
    branch = {name: tensor for name, tensor in tensors.items() if name not in packed_parts}
    for module in modules:
        parts = _serialize(tensors[f"{module}.weight_packed"], tensors[f"{module}.weight_scale"])
        branch |= {f"{module}.{part}": raw for part, raw in parts.items()}
    quantization = {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": GROUP_SIZE,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "dynamic": {rf"-:.*\.{kept}.*": {} for kept in ("self_attn", "linear_attn", "shared_expert", r"mlp\.gate")},
        "meta": {"quantizer": ["llmcompressor:0.14.0.1"]},
    }
    return branch, config | {"quantization_config": quantization}


def _serialize(packed: RawTensor, scale: RawTensor) -> Tensors:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    rows, groups = scale.shape
    columns = packed.shape[1] * 32 // BITS
    words = torch.frombuffer(bytearray(packed.data), dtype=torch.int32).reshape(packed.shape)
    unsigned = unpack_from_int32(words, BITS, torch.Size((rows, columns))).int() + ZERO
    scales = torch.frombuffer(bytearray(scale.data), dtype=torch.bfloat16).reshape(rows, groups).T
    if not torch.equal(scales.half().bfloat16(), scales):
        raise SystemExit("a scale does not fit FP16")
    stored_zeros = torch.full((rows, groups), ZERO - 1, dtype=torch.int32)
    arrays = {
        "qweight": ("I32", pack_rows(unsigned.T, BITS)),
        "qzeros": ("I32", pack_rows(stored_zeros, BITS).T),
        "scales": ("F16", scales.half()),
        "g_idx": ("I32", torch.arange(columns, dtype=torch.int32) // GROUP_SIZE),
    }
    return {part: RawTensor(dtype, tuple(array.shape), tensor_bytes(array)) for part, (dtype, array) in arrays.items()}


def pack_rows(values: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Int32 words [n · bits / 32, m] from unsigned integers [n, m], lowest bits first."""
    import torch

    per_word = 32 // bits
    grouped = values.long().reshape(-1, per_word, values.shape[1])
    shifts = torch.arange(0, 32, bits).reshape(1, -1, 1)
    return (grouped << shifts).sum(1).to(torch.int32)
