"""What the producers' surgery writes decodes to what went in."""

import json
from pathlib import Path

import torch

from benchmarks.sandbox.derive import restore_unquantized, with_reference_head, write_gptq, write_overlay
from q36eval.app.sandbox import RawTensor, read_raw, tensor_bytes, write_raw
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.weights import index_weights

MODULE = "model.layers.0.mlp.experts.0.down_proj"


def raw(tensor: torch.Tensor) -> RawTensor:
    names = {torch.bfloat16: "BF16", torch.int32: "I32", torch.int64: "I64", torch.float32: "F32"}
    return RawTensor(names[tensor.dtype], tuple(tensor.shape), tensor_bytes(tensor))


def saved(folder: Path, tensors: dict[str, RawTensor], config: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_raw(folder / "model.safetensors", tensors)
    return folder


def decoded(folder: Path) -> torch.Tensor:
    weight, _ = index_weights(open_checkpoint(folder)).weights[f"{MODULE}.weight"].read()
    return weight.bfloat16()


def test_gptq_serialization_decodes_to_the_weights_llm_compressor_computed(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    words = torch.randint(-(2**31), 2**31, (64, 32), dtype=torch.int64, generator=generator).int()
    scale = (torch.rand(64, 2, generator=generator) * 0.02 + 0.001).bfloat16()
    parts = {"weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor([64, 256])}
    tensors = {f"{MODULE}.{part}": raw(tensor) for part, tensor in parts.items()}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    packed = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    before = decoded(saved(tmp_path / "packed", tensors, {"quantization_config": packed}))
    after = decoded(saved(tmp_path / "gptq", *write_gptq(tensors, {})))
    assert torch.equal(before, after)
    assert before.unique().numel() > 100


def test_main_gets_the_reference_head_and_a_configuration_that_leaves_it_alone() -> None:
    reference = {"lm_head.weight": raw(torch.ones(4, 4).bfloat16())}
    fp8_head = {
        "lm_head.weight": RawTensor("F8_E4M3", (4, 4), bytes(16)),
        "lm_head.weight_scale": raw(torch.ones(1, 1)),
    }
    inner = {MODULE: raw(torch.zeros(2, 2))}
    groups = {"group_0": {"targets": ["re:.*experts.*"]}, "group_1": {"targets": ["re:.*lm_head$"]}}
    config = {"quantization_config": {"config_groups": groups, "ignore": ["x"], "format": "mixed-precision"}}
    tensors, changed = with_reference_head(fp8_head | inner, reference, config)
    assert tensors == reference | inner
    assert changed["quantization_config"]["ignore"] == ["x", "lm_head"]
    assert list(changed["quantization_config"]["config_groups"]) == ["group_0"]
    assert list(groups) == ["group_0", "group_1"]


def test_unquantized_tensors_are_taken_from_the_reference() -> None:
    reference = {"norm.weight": raw(torch.ones(2).bfloat16()), "x.weight": raw(torch.ones(2).bfloat16())}
    branch = {"norm.weight": raw(torch.zeros(2).bfloat16()), "x.weight": RawTensor("F8_E4M3", (2,), b"12")}
    assert restore_unquantized(branch, reference) == reference | {"x.weight": branch["x.weight"]}


def test_overlay_holds_only_what_differs(tmp_path: Path) -> None:
    same, other = raw(torch.ones(8).bfloat16()), raw(torch.zeros(8).bfloat16())
    saved(tmp_path / "sandbox" / "bf16", {"a": same, "b": same, "gone": same}, {})
    branch = saved(tmp_path / "w4a16", {"a": same, "b": other, "new": same}, {})
    write_overlay(branch, "bf16", tmp_path / "sandbox")
    overlay = tmp_path / "sandbox" / "overlays" / "w4a16"
    plan = json.loads((overlay / "overlay.json").read_text())
    assert plan == {"base": "bf16", "dropped": ["gone"]}
    (overlay / "overlay.safetensors").rename(overlay / "model.safetensors")
    assert set(read_raw(overlay)) == {"b", "new"}
