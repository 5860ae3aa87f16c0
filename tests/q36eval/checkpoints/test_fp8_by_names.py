"""FP8 as compressed-tensors writes it, by stored names: every architecture loads equal to its decoded weights.

Here transformers' model says which weights are quantized; the loader reads that from its row numbers.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from q36eval.checkpoints.loader import load_model
from tests.q36eval.checkpoints.architectures import NAMES, saved

QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}
FUSED = {"gpt_oss", "granitemoe", "granitemoehybrid", "llama4_text"}
"""Architectures whose experts are stored as one tensor, which no producer of this format quantizes."""
EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight")


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 values and one scale a row."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    return (weight.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("name", NAMES)
def test_fp8_weights_come_where_transformers_puts_the_decoded_ones(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(name, tmp_path / "model")
    file, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    stored = load_file(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    linear = {f"{each}.weight" for each, module in model.named_modules() if isinstance(module, nn.Linear)}
    chosen = {each for each in stored if each in linear - {"lm_head.weight"} or EXPERT.search(each)}
    parts = {each: quantized(stored[each]) for each in chosen}
    decoded = {each: (values.to(scale.dtype) * scale).to(torch.bfloat16) for each, (values, scale) in parts.items()}
    save_file(stored | decoded, file, metadata={"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    values = {each: values for each, (values, _) in parts.items()}
    scales = {f"{each}_scale": scale for each, (_, scale) in parts.items()}
    save_file(stored | values | scales, file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}))
    loaded = load_model(folder)
    ours = loaded.model.state_dict()
    assert [each for each, value in theirs.items() if not torch.equal(value, ours[each])] == []
    counted = sum(formats.get("float-quantized", 0) for formats in loaded.report.formats.values())
    assert counted == len(chosen)
    assert bool(chosen) == (name != "gpt2")
    in_experts = [each for each in chosen if EXPERT.search(each)]
    assert bool(in_experts) == (loaded.report.formats.get("routed experts") is not None and name not in FUSED)
