"""FP8 as compressed-tensors writes it, of any tiny model: which weights are quantized says transformers' own model."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from q36eval.checkpoints.architecture import base_of

EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight")
_INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}


def _quantization(inputs: bool) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": _INPUTS if inputs else None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 values and one scale a row."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    return (weight.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _content(weight: Tensor) -> bytes:
    return weight.detach().contiguous().view(torch.uint8).numpy().tobytes()


def quantize(folder: Path, *, inputs: bool = False) -> dict[str, Tensor]:
    """Quantize the linear layers and the experts of a checkpoint where it lies; their decoded weights by stored name.

    `inputs`: inputs too, dynamically by token.
    """
    from transformers import AutoModelForCausalLM

    file, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    stored = load_file(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    # a stored weight is known by its values: some architectures have other names in memory
    linear = {_content(module.weight) for module in base_of(model).modules() if isinstance(module, nn.Linear)}
    chosen = {name for name, value in stored.items() if _content(value) in linear or EXPERT.search(name)}
    parts = {name: _quantized(stored[name]) for name in chosen}
    values = {name: values for name, (values, _) in parts.items()}
    scales = {f"{name}_scale": scale for name, (_, scale) in parts.items()}
    save_file(stored | values | scales, file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": _quantization(inputs)}))
    return {name: (values.to(scale.dtype) * scale).to(torch.bfloat16) for name, (values, scale) in parts.items()}
