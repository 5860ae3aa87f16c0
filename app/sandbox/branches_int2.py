"""The deliberately ruined branch: routed experts rounded to two bits, computed from the BF16 checkpoint."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.app.sandbox.branches_raw import RawTensor, read_raw, write_raw

if TYPE_CHECKING:
    import torch

GROUP_SIZE = 32
BITS = 2
TARGET = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"


def write_int2_experts(bf16: Path, target: Path) -> None:
    """Write `config.json` and `model.safetensors` of the branch into `target`.

    Symmetric round-to-nearest in groups of 32 columns, as the damage ladder's INT2: values in {-2, -1, 0, 1} times a
    BF16 scale of max |w| / 1.5, packed as compressed-tensors packs them.
    """
    tensors = read_raw(bf16)
    branch: dict[str, RawTensor] = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            module = name.removesuffix(".weight")
            branch |= {f"{module}.{part}": raw for part, raw in _rounded(tensor).items()}
        else:
            branch[name] = tensor
    config: dict[str, Any] = json.loads((bf16 / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _quantization_config()
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_raw(target / "model.safetensors", branch)


def _rounded(tensor: RawTensor) -> dict[str, RawTensor]:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    rows, columns = tensor.shape
    weight = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16).reshape(rows, -1, GROUP_SIZE).float()
    scale = (weight.abs().amax(-1) / 1.5).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
    q = torch.round(weight / scale.float().unsqueeze(-1)).clamp(-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1)
    packed = pack_to_int32(q.reshape(rows, columns).to(torch.int8), BITS).contiguous()
    return {
        "weight_packed": RawTensor("I32", tuple(packed.shape), tensor_bytes(packed)),
        "weight_scale": RawTensor("BF16", tuple(scale.shape), tensor_bytes(scale)),
        "weight_shape": RawTensor("I64", (2,), tensor_bytes(torch.tensor([rows, columns]))),
    }


def tensor_bytes(tensor: "torch.Tensor") -> bytes:
    """A tensor's data, row-major."""
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _quantization_config() -> dict[str, Any]:
    weights = {"num_bits": BITS, "type": "int", "strategy": "group", "group_size": GROUP_SIZE, "symmetric": True}
    group = {"targets": [TARGET], "weights": weights, "input_activations": None, "format": "pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
