"""Damage of a good branch of SmolLM2: inspection names it, or the divergence rises clearly."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from q36eval.checkpoints.inspection import inspect_checkpoint
from tests import smollm2, smollm2_branches
from tests.q36eval.checkpoints.inspection.damage import Damage, Tensors, config, edit, edit_json, one
from tests.smollm2_kl import kl

EMBEDDINGS = "model.embed_tokens.weight"


def layer(number: int) -> str:
    return f"model.layers.{number}."


DOWN, QUERIES = f"{layer(10)}mlp.down_proj", f"{layer(10)}self_attn.q_proj"
BOUND = "beyond-scheme"
CLEARLY = 1.5
"""A divergence that has risen by this factor has other causes than rounding."""


def exchanged(first: str, second: str) -> Damage:
    """Everything of one module, or layer, under the name of the other."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(first)]:
            other = second + name.removeprefix(first)
            tensors[name], tensors[other] = tensors[other], tensors[name]

    return edit(change)


def scaled(module: str, factor: float, rows: slice = slice(None)) -> Damage:
    def change(tensors: Tensors) -> None:
        tensors[f"{module}.weight_scale"][rows] *= factor

    return edit(change)


def rows_in_the_order_of_llama_cpp(tensors: Tensors) -> None:
    """Each head's rows as llama.cpp stores them, not put back."""
    for part in ("weight", "weight_scale"):
        rows = tensors[f"{QUERIES}.{part}"]
        as_bytes = rows.view(torch.uint8) if part == "weight" else rows
        heads = as_bytes.reshape(9, 2, 32, -1).transpose(1, 2).reshape(rows.shape[0], -1)
        tensors[f"{QUERIES}.{part}"] = heads.contiguous().view(rows.dtype)


def shard_of_an_earlier_version(tensors: Tensors) -> None:
    """A shard that begins within a layer, quantized from the model before it was rescaled."""
    earlier = load_file(smollm2.folder(rescaled=False) / "model.safetensors")
    for name in [name for name in earlier if name.startswith(f"{layer(20)}mlp.")]:
        weight = earlier[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale.to(tensors[f"{name}_scale"].dtype)


def zero_weights(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if name.startswith(f"{layer(10)}mlp.") and name.endswith(".weight"):
            tensor.view(torch.uint8).zero_()


def no_rotary_base(folder: Path) -> None:
    edit_json(folder, "config.json", lambda document: document.pop("rope_parameters"))


def ignored_scales(folder: Path) -> None:
    """The scales of the KV cache stay in the file, and config.json declares none."""
    edit_json(folder, "config.json", lambda document: document["quantization_config"].pop("kv_cache_scheme"))


def another_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors[EMBEDDINGS] * 1.01


def tenth_of(*parts: str) -> Callable[[Tensors], None]:
    """Values above a tenth of the largest one are cut."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(parts)]:
            tensors[name] /= 10

    return change


@dataclass(frozen=True)
class Case:
    """A change of a branch, and the rule that finds it; None where only the divergence shows it."""

    what: str
    damage: Damage
    rule: str | None
    branch: str = "fp8-dynamic"


def filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


CASES = [
    Case("layers 3 and 4 exchanged", exchanged(layer(3), layer(4)), BOUND),
    Case("gate and up exchanged", exchanged(f"{layer(5)}mlp.gate_proj", f"{layer(5)}mlp.up_proj"), BOUND),
    Case("scales one row further", one(f"{DOWN}.weight_scale", lambda scales: scales.roll(1, 0)), BOUND),
    Case("scales halved", scaled(DOWN, 0.5), BOUND),
    Case("scales of a module 5 % off", scaled(QUERIES, 1.05), BOUND),
    Case("one scale 5 % off", scaled(QUERIES, 1.05, slice(7, 8)), BOUND),
    Case("a norm's weight lost", one(f"{layer(0)}input_layernorm.weight", filled(1.0)), "unquantized-differs"),
    Case("a layer's weights zero", edit(zero_weights), BOUND),
    Case("rows of queries as llama.cpp orders them", edit(rows_in_the_order_of_llama_cpp), BOUND),
    Case("a shard of an earlier version", edit(shard_of_an_earlier_version), BOUND),
    Case("token ids off by one", one(EMBEDDINGS, lambda weight: weight.roll(1, 0)), "unquantized-differs"),
    Case("another head than the one that is tied", edit(another_head), "tied-head"),
    Case("head not tied", config(tie_word_embeddings=False), "missing-tensor"),
    Case("base of rotary positions lost", no_rotary_base, "computation-differs"),
    Case("another epsilon", config(rms_norm_eps=1e-6), "computation-differs"),
    Case("a layer less", config(num_hidden_layers=29), "unexpected-tensor"),
    Case("scales of the KV cache ignored", ignored_scales, "kv-scales-undeclared", "fp8-static-kv"),
    Case("scales of all inputs a tenth", edit(tenth_of(".input_scale")), None, "fp8-static-kv"),
    Case("scales of the KV cache a tenth", edit(tenth_of(".k_scale", ".v_scale")), None, "fp8-static-kv"),
]


@cache
def undamaged(branch: str) -> float:
    return kl(smollm2_branches.branch(branch).folder)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_damage_is_found(case: Case, tmp_path: Path) -> None:
    """Prints a row of a table: what is damaged, and what shows it."""
    folder = tmp_path / "branch"
    shutil.copytree(smollm2_branches.branch(case.branch).folder, folder)
    case.damage(folder)
    inspection = inspect_checkpoint(folder, smollm2.folder(), weights_workers=1)
    rules = sorted({finding.rule for finding in inspection.findings})
    if case.rule is not None:
        print(f"| {case.what} | {', '.join(rules)} |")
        assert case.rule in rules
        return
    damaged = kl(folder)
    print(f"| {case.what} | KL {undamaged(case.branch):.4f} -> {damaged:.4f} |")
    assert rules == []
    assert damaged > CLEARLY * undamaged(case.branch)
