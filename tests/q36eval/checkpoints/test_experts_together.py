"""Experts stored together: as transformers holds them in fine-grained FP8, as GPT-OSS is published, and in BF16.

One weight each, every part used, nothing guessed; transformers' own dequantization of MXFP4 gives the same model.
"""

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
from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint
from q36eval.checkpoints.placements import LAYERS, PACKED
from q36eval.checkpoints.reader import Checkpoint, TensorEntry
from q36eval.checkpoints.weights import index_weights
from q36eval.engines.layer_pass import LayerPass, Segment
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.q36eval.checkpoints.architectures import saved, tiny_model
from tests.raising import raises
from tests.stored_formats import formats_of, quantized_inputs

from .inspection.damage import Tensors, config, edit_tensors, fp4_bytes
from .inspection.damage import quantization as declared
from .test_golden import GOLDEN

FUSED, APART = GOLDEN / "tf-fp8-fused", GOLDEN / "tf-fp8-per-expert"
FIRST = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{FIRST}.gate_up_proj", f"{FIRST}.down_proj"


def changed(target: Path, change: Callable[[Tensors], Tensors], source: Path = FUSED, **quantization: Any) -> Path:
    """A copy with other tensors and other entries of its quantization."""
    shutil.copytree(source, target)
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors")
    declared(**quantization)(target)
    return target


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def with_scale(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {f"{name}_scale_inv": change(tensors[f"{name}_scale_inv"]).contiguous()}


def one_of_those_apart() -> Tensors:
    return {name: t for name, t in load_file(APART / "model.safetensors").items() if ".experts.1.up_proj." in name}


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
        (
            lambda t: t | {f"{FIRST}.1.up_proj.weight": torch.zeros(32, 32)},
            "tensor-duplicate",
            GATE_UP,
        ),
        (lambda t: t | one_of_those_apart(), "tensor-duplicate", "experts.1.up_proj"),
        (with_scale(DOWN, lambda scale: scale[:1]), "tensor-shape", "2 experts"),
        (with_scale(GATE_UP, lambda scale: scale[:, :3]), "tensor-shape", "3 rows"),
        (lambda t: t | {DOWN: t[DOWN][0], f"{DOWN}_scale_inv": t[f"{DOWN}_scale_inv"][0]}, "tensor-shape", DOWN),
        (
            lambda t: {n: v.repeat(2, 1, 1) if n.startswith(FIRST) else v for n, v in t.items()},
            "tensor-unexpected",
            DOWN,
        ),
    ],
    ids=range(9),
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[Tensors], Tensors], code: str, named: str
) -> None:
    with raises(CorruptCheckpointError, code, named):
        load_model(changed(tmp_path / "wrong", change))


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
            found = weights[f"{FIRST}.{expert}.{which}_proj.weight"].activations()
            assert found == ActivationScheme("fp8", 0, static_scale=scale)
    assert quantized_inputs(folder) == 4 + 3 + 2 * 3


def test_fused_experts_left_in_bf16_are_plain_excluded_or_not(tmp_path: Path) -> None:
    def plain(tensors: Tensors) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(FIRST)}
        return kept | {name: tensors[name].float().bfloat16() for name in (GATE_UP, DOWN)}

    assert quantized_inputs(changed(tmp_path / "declared", plain)) == 4 + 3
    listed = {"modules_to_not_convert": ["lm_head", "shared_expert_gate", FIRST]}
    assert quantized_inputs(changed(tmp_path / "excluded", plain, **listed)) == 4 + 3


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


# -- GPT-OSS as it is published, its experts in MXFP4

PUBLISHED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
"""What the published configuration lists as not converted."""
EXPERTS = "model.layers.1.mlp.experts"
TOKENS = torch.randint(3, 256, (2, 40), generator=torch.Generator().manual_seed(1))


def microscaled(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [experts, out, in / 32, 16] and scales of experts [experts, in, out], rounded to nearest."""
    groups = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    return fp4_bytes(groups / torch.exp2(exponent)), (exponent.squeeze(-1) + 127).to(torch.uint8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("gpt_oss", tmp_path_factory.mktemp("gpt_oss") / "plain")


def quantized(plain: Path, folder: Path, **changes: Tensor) -> Path:
    """The model with its experts in MXFP4; `changes` replace stored tensors of layer 1's experts."""
    shutil.copytree(plain, folder)

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = microscaled(tensors.pop(name))
        tensors |= {f"{EXPERTS}.{name}": value for name, value in changes.items()}

    edit_tensors(folder, change)
    config(quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": PUBLISHED})(folder)
    return folder


@pytest.fixture(scope="module")
def published(plain: Path) -> Path:
    return quantized(plain, plain.parent / "mxfp4")


def test_every_placement_gives_the_weights_that_transformers_dequantizes(published: Path) -> None:
    from transformers import AutoModelForCausalLM, Mxfp4Config

    theirs = AutoModelForCausalLM.from_pretrained(
        published, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    ).eval()
    ours, packed, apart = (load_model(published, placement=how) for how in ("decoded", PACKED, LAYERS))
    assert formats_of(published)["routed experts"] == {"mxfp4": 4, "plain": 4}
    state = ours.model.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(state[name], value), name
    with torch.inference_mode():
        logits = theirs(TOKENS, use_cache=False).logits
        assert torch.equal(ours.model(TOKENS, use_cache=False).logits, logits)
        assert torch.equal(packed.model(TOKENS, use_cache=False).logits, logits)
        states = ours.model.model(TOKENS[:1], use_cache=False).last_hidden_state
    one = LayerPass(apart.model, apart.layers, [Segment(TOKENS[:1])], chunk=lambda *_: TOKENS.shape[1])
    one.run(lambda _done, _of: None)
    assert torch.equal(one.hidden_states[0], states)


def found(inspection: Inspection) -> set[tuple[str, str]]:
    """Rules and subjects, but for those of the texts, which a model of our own has not."""
    texts = ("tokenizer-missing", "chat-template-missing", "generation-config-missing")
    return {(finding.rule, finding.subject) for finding in inspection.findings if finding.rule not in texts}


def test_inspection_finds_nothing_wrong_as_branch_or_as_reference(plain: Path, published: Path) -> None:
    assert found(inspect_checkpoint(published)) == set()
    assert found(inspect_checkpoint(published, published)) == set()
    inspection = inspect_checkpoint(published, plain)
    assert found(inspection) == set()
    assert (inspection.schemes, inspection.unbounded_weights) == ({"MXFP4_A16": 4}, 0)
    row = next(row for row in inspection.errors if row.stored == "MXFP4 g32")
    assert 0.05 < row.median_relative_error < 0.15
    assert row.worst_bound_usage <= 1


def test_one_exponent_that_is_off_is_found(plain: Path, published: Path, tmp_path: Path) -> None:
    scales = load_file(published / "model.safetensors")[f"{EXPERTS}.down_proj_scales"]
    scales[2, 5, 1] += 2
    damaged = quantized(plain, tmp_path / "damaged", down_proj_scales=scales)
    assert ("beyond-scheme", f"{EXPERTS}.down_proj") in found(inspect_checkpoint(damaged, plain))


def test_scales_of_another_shape_are_refused(plain: Path, tmp_path: Path) -> None:
    scales = torch.full((4, 64, 3), 127, dtype=torch.uint8)
    with raises(CorruptCheckpointError, "tensor-shape", f"{EXPERTS}.down_proj"):
        load_model(quantized(plain, tmp_path / "shape", down_proj_scales=scales))


AS_PUBLISHED = ("gpt_oss", "granitemoe", "llama4_text")
WRITTEN = ("deepseek_v3", "olmoe", "qwen3_5_moe_text", "qwen3_moe")
STACKS = (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")


@pytest.mark.parametrize("name", [*AS_PUBLISHED, *WRITTEN])
def test_experts_together_are_read_once_and_appear_in_an_inspection(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published, and as transformers may write those of any model: as one tensor of three axes."""
    model = tiny_model(name)
    model.save_pretrained(tmp_path, save_original_format=name in AS_PUBLISHED)
    stored = open_checkpoint(tmp_path).tensors
    stacked = [each for each, entry in stored.items() if len(entry.shape) == 3 and any(one in each for one in STACKS)]
    assert len(stacked) >= 2
    read: list[tuple[int, int]] = []
    own = Checkpoint.read_into

    def counted(checkpoint: Checkpoint, entry: TensorEntry, target: memoryview) -> None:
        read.append((entry.begin, entry.end))
        own(checkpoint, entry, target)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "read_into", counted)
        ours = load_model(tmp_path).model.state_dict()
    assert [key for key, value in model.state_dict().items() if not torch.equal(value, ours[key])] == []
    bounds = sorted((entry.begin, entry.end) for entry in stored.values())
    read.sort()
    assert sum(end - begin for begin, end in read) == sum(end - begin for begin, end in bounds)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(read))
    inspection = inspect_checkpoint(tmp_path, tmp_path)
    assert found(inspection) == {("nothing-quantized", "config.json")}
    values = sum(each.numel() for key, each in model.named_parameters() if any(one in key for one in STACKS))
    assert sum(row.values for row in inspection.coverage if row.tensor_class == "routed experts") == values
