"""Fused experts load as transformers loads them, and wrong tensors are refused by name; more: `test_architectures`."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints import load_model
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises

EXPERT = "model.layers.1.mlp.experts.2.gate_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
IDS = torch.arange(60).reshape(2, 30)

Tensors = dict[str, Tensor]


def rewritten(source: Path, target: Path, change: Callable[[Tensors], Tensors | None], **config: Any) -> Path:
    """A copy of a folder with other tensors and configuration entries."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    save_file(change(tensors) or tensors, target / "model.safetensors", metadata={"format": "pt"})
    document = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(document | config))
    return target


@pytest.fixture(scope="module")
def reference(bf16_folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(bf16_folder, dtype=torch.bfloat16).eval()


def assert_same_model(loaded: Any, reference: Any) -> None:
    """Parameters, buffers (which no checkpoint stores) and logits, bit for bit."""
    for kind in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(loaded, kind)()), dict(getattr(reference, kind)())
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
        assert all(ours[name].dtype == tensor.dtype for name, tensor in theirs.items())
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=IDS).logits, reference(input_ids=IDS).logits)


def fused(tensors: Tensors) -> Tensors:
    experts = "model.layers.{}.mlp.experts"
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(2):
        stacks = {
            half: torch.stack([tensors[f"{experts.format(layer)}.{e}.{half}_proj.weight"] for e in range(4)])
            for half in ("gate", "up", "down")
        }
        kept[f"{experts.format(layer)}.gate_up_proj"] = torch.cat([stacks["gate"], stacks["up"]], dim=1)
        kept[f"{experts.format(layer)}.down_proj"] = stacks["down"]
    return kept


def test_fused_experts_load_the_same_model(bf16_folder: Path, tmp_path: Path, reference: Any) -> None:
    assert_same_model(load_model(rewritten(bf16_folder, tmp_path / "fused", fused)).model, reference)


def remove(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def add(name: str, value: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: value}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (remove("model.layers.0.linear_attn.A_log"), "model.layers.0.linear_attn.A_log"),
        (add("model.layers.1.mlp.experts.4.up_proj.weight", torch.zeros(64, 128)), "experts.4.up_proj.weight"),
        (add("lm_head.weight_scale", torch.zeros(2, 1)), "lm_head.weight_scale"),
        (add(EXPERT, torch.zeros(64, 64)), EXPERT),
        (add(NORM, torch.zeros(128, dtype=torch.int8)), NORM),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_tensors_are_refused_by_name(
    bf16_folder: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], named: str
) -> None:
    folder = rewritten(bf16_folder, tmp_path / "wrong", change)
    with pytest.raises(CorruptCheckpointError, match=re.escape(named)):
        load_model(folder)


def test_weights_the_configuration_quantizes_must_be_stored_quantized(bf16_folder: Path, tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", "re:.*linear_attn.*", "re:.*shared_expert.*", "re:.*self_attn.*"],
    }
    folder = rewritten(bf16_folder, tmp_path / "plain", lambda tensors: None, quantization_config=quantization)
    with raises(CorruptCheckpointError, "tensor-missing", "_proj.weight_packed"):
        load_model(folder)
