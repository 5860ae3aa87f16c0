"""Tiny models with random weights of every architecture that is supported, by transformers' own classes; in FP8 too."""

import json
import re
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from q36eval.checkpoints.architecture import base_of

_TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SETTINGS: dict[str, dict[str, Any]] = _TABLE["models"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = _TABLE["variants"]
WRAPPERS: dict[str, tuple[str, dict[str, Any]]] = _TABLE["wrappers"]
NAMES = sorted({*SETTINGS, *VARIANTS})
EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight")
_INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}


def tiny_model(name: str, **other: Any) -> Any:
    """The model of that architecture, or with other settings, in BF16; no weight, norm or bias is zero or one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    kind, more = WRAPPERS.get(name) or VARIANTS.get(name, (name, {}))
    settings = _TABLE["sizes"] | SETTINGS[kind] | other
    if name in WRAPPERS:
        config = AutoConfig.for_model(name, text_config=settings | {"model_type": kind}, **more)
    else:
        config = AutoConfig.for_model(kind, **(settings | more))
    model_class = AutoModelForImageTextToText if name in WRAPPERS else AutoModelForCausalLM
    torch.manual_seed(0)
    model = model_class.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter.float() + 0.05 * torch.randn(parameter.shape)).to(parameter.dtype))
        for buffer_name, buffer in model.named_buffers():
            if "correction_bias" in buffer_name:
                buffer.copy_(0.01 * torch.randn(buffer.shape))
    return model


def saved(name: str, folder: Path, **other: Any) -> Path:
    """The folder, with that model in it as transformers stores it."""
    tiny_model(name, **other).save_pretrained(folder)
    return folder


# -- FP8 as compressed-tensors writes it, of any of them: transformers' own model says which weights are quantized


def _quantization(inputs: bool, head: bool) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": _INPUTS if inputs else None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": [] if head else ["lm_head"],
    }


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 values and one scale a row."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    return (weight.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _content(weight: Tensor) -> bytes:
    return weight.detach().contiguous().view(torch.uint8).numpy().tobytes()


def quantize(folder: Path, *, inputs: bool = False, head: bool = False) -> dict[str, Tensor]:
    """Quantize the linear layers and the experts of a checkpoint where it lies; their decoded weights by stored name.

    `inputs`: inputs too, dynamically by token. `head`: the head too.
    """
    from transformers import AutoModelForCausalLM

    file, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    stored = load_file(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    # a stored weight is known by its values: some architectures have other names in memory
    linear = {_content(module.weight) for module in base_of(model).modules() if isinstance(module, nn.Linear)}
    chosen = {name for name, value in stored.items() if _content(value) in linear or EXPERT.search(name)}
    chosen |= {"lm_head.weight"} if head else set()
    parts = {name: _quantized(stored[name]) for name in chosen}
    values = {name: values for name, (values, _) in parts.items()}
    scales = {f"{name}_scale": scale for name, (_, scale) in parts.items()}
    save_file(stored | values | scales, file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": _quantization(inputs, head)}))
    return {name: (values.to(scale.dtype) * scale).to(torch.bfloat16) for name, (values, scale) in parts.items()}
