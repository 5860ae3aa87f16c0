"""Fused fine-grained FP8 experts, as transformers holds them: one weight each, every part used, nothing guessed."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.weights import index_weights
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

GOLDEN = Path(__file__).parents[2] / "assets" / "golden"
FUSED, APART = GOLDEN / "tf-fp8-fused", GOLDEN / "tf-fp8-per-expert"
EXPERTS = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
Tensors = dict[str, Tensor]


def changed(target: Path, change: Callable[[Tensors], Tensors], source: Path = FUSED, **quantization: Any) -> Path:
    """A copy with other tensors and other entries of its quantization."""
    shutil.copytree(source, target)
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] |= quantization
    (target / "config.json").write_text(json.dumps(config))
    return target


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def with_scale(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {f"{name}_scale_inv": change(tensors[f"{name}_scale_inv"]).contiguous()}


def test_every_expert_is_a_weight_of_its_own_that_reads_its_own_bytes_only() -> None:
    fused, apart = (index_weights(open_checkpoint(folder)).weights for folder in (FUSED, APART))
    assert fused.keys() == apart.keys()
    for name, weight in fused.items():
        assert weight.stored_bytes == apart[name].stored_bytes, name
        assert weight.activations() == apart[name].activations(), name
        theirs = apart[name].read_parts()
        for part, tensor in weight.read_parts().items():
            assert torch.equal(tensor.view(torch.uint8), theirs[part].view(torch.uint8)), (name, part)
    checkpoint = open_checkpoint(FUSED)
    used = sorted((e.begin, e.end) for weight in fused.values() for _, e in weight.parts)
    assert used[0][0] == min(entry.begin for entry in checkpoint.tensors.values())
    assert all(end == begin for (_, end), (begin, _) in pairwise(used))  # no byte twice, none left


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (without(f"{DOWN}_scale_inv"), "tensor-missing", f"{DOWN}_scale_inv"),
        (without(DOWN, f"{DOWN}_scale_inv"), "tensor-missing", DOWN),
        (lambda t: t | {f"{DOWN}_zero": torch.zeros(2)}, "tensor-unexpected", f"{DOWN}_zero"),
        (lambda t: t | {f"{EXPERTS}.1.up_proj.weight": torch.zeros(32, 32)}, "tensor-duplicate", GATE_UP),
        (with_scale(DOWN, lambda scale: scale[:1]), "tensor-shape", "2 experts"),
        (with_scale(GATE_UP, lambda scale: scale[:, :3]), "tensor-shape", "3 rows"),
        (lambda t: t | {DOWN: t[DOWN][0], f"{DOWN}_scale_inv": t[f"{DOWN}_scale_inv"][0]}, "tensor-shape", DOWN),
        (
            lambda t: {n: v.repeat(2, 1, 1) if n.startswith(EXPERTS) else v for n, v in t.items()},
            "tensor-unexpected",
            DOWN,
        ),
    ],
    ids=range(8),
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[Tensors], Tensors], code: str, named: str
) -> None:
    with raises(CorruptCheckpointError, code, named):
        load_model(changed(tmp_path / "wrong", change))


def test_an_expert_stored_twice_is_refused(tmp_path: Path) -> None:
    per_expert = load_file(APART / "model.safetensors")
    again = {name: tensor for name, tensor in per_expert.items() if ".experts.1.up_proj." in name}
    with raises(CorruptCheckpointError, "tensor-duplicate"):
        load_model(changed(tmp_path / "twice", lambda tensors: tensors | again))


def test_gate_and_up_that_share_blocks_are_refused(tmp_path: Path) -> None:
    """With 48-row blocks over halves of 32 rows, a block's scale belongs to rows of both, and readers disagree."""
    with raises(UsageError, "scheme-unsupported", "48 rows"):
        load_model(changed(tmp_path / "shared", with_scale(GATE_UP, lambda s: s[:, :2]), weight_block_size=[48, 16]))


@pytest.mark.parametrize("halves", [1, 2])
def test_one_scale_per_expert_or_per_half(tmp_path: Path, halves: int) -> None:
    """Per tensor, transformers' quantizer writes [E, 1, 1]; its module has room for a gate and an up scale."""

    def per_tensor(tensors: Tensors) -> Tensors:
        found = dict(tensors)
        for name in [name for name in tensors if name.endswith("_scale_inv")]:
            found[name] = torch.full((2, 1, 1) if ".experts." in name else (1, 1), 0.5)
        found[f"{GATE_UP}_scale_inv"] = torch.tensor([[[0.25]] * halves, [[4.0]] * halves])
        found[f"{GATE_UP}_scale_inv"][1, -1] = 2.0
        return found

    folder = changed(tmp_path / "tensor", per_tensor, weight_block_size=None)
    experts = load_model(folder).model.model.layers[0].mlp.experts
    stored = load_file(FUSED / "model.safetensors")[GATE_UP].float()
    scale = torch.full((2, 64, 1), 0.25)
    scale[1] = 2.0
    if halves == 2:
        scale[1, :32] = 4.0
    assert torch.equal(experts.gate_up_proj, (stored * scale).bfloat16())


def test_static_inputs_have_a_scale_per_expert(tmp_path: Path) -> None:
    def static(tensors: Tensors) -> Tensors:
        found = dict(tensors)
        for name in tensors:
            if name.endswith(".weight_scale_inv"):
                found[name.replace("weight_scale_inv", "activation_scale")] = torch.tensor(0.5)
        found[f"{GATE_UP}_activation_scale"] = torch.tensor([0.25, 2.0])
        return found | {f"{DOWN}_activation_scale": torch.tensor([3.0, 4.0])}

    folder = changed(tmp_path / "static", static, activation_scheme="static")
    weights = index_weights(open_checkpoint(folder)).weights
    for which, scales in {"gate": (0.25, 2.0), "up": (0.25, 2.0), "down": (3.0, 4.0)}.items():
        for expert, scale in enumerate(scales):
            found = weights[f"{EXPERTS}.{expert}.{which}_proj.weight"].activations()
            assert found == ActivationScheme("fp8", 0, static_scale=scale)
    assert load_model(folder).report.quantized_inputs == 4 + 3 + 2 * 3


def test_fused_experts_left_in_bf16_are_plain_excluded_or_not(tmp_path: Path) -> None:
    def plain(tensors: Tensors) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(EXPERTS)}
        return kept | {name: tensors[name].float().bfloat16() for name in (GATE_UP, DOWN)}

    assert load_model(changed(tmp_path / "declared", plain)).report.quantized_inputs == 4 + 3
    listed = {"modules_to_not_convert": ["lm_head", "shared_expert_gate", EXPERTS]}
    assert load_model(changed(tmp_path / "excluded", plain, **listed)).report.quantized_inputs == 4 + 3


def test_scales_stored_as_powers_of_two(tmp_path: Path) -> None:
    """`scale_fmt: ue8m0` stores eight exponent bits; decoded like transformers does it."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    def exponents(tensors: Tensors) -> Tensors:
        scales = {name: tensor for name, tensor in tensors.items() if name.endswith("_scale_inv")}
        return tensors | {name: scale.to(torch.float8_e8m0fnu) for name, scale in scales.items()}

    folder = changed(tmp_path / "ue8m0", exponents, scale_fmt="ue8m0")
    experts = load_model(folder).model.model.layers[0].mlp.experts
    stored = load_file(folder / "model.safetensors")
    for name in (GATE_UP, DOWN):
        expected = Fp8Dequantize(None)._dequantize_one(stored[name], stored[f"{name}_scale_inv"], torch.bfloat16)
        assert torch.equal(experts.get_parameter(name.rpartition(".")[2]), expected)
    assert inspect_checkpoint(folder).measured
