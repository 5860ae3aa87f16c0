"""GPT-OSS as it is published, its experts in MXFP4: transformers' own dequantization gives the same model."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.placements import LAYERS, PACKED
from q36eval.checkpoints.reader import Checkpoint, TensorEntry, open_checkpoint
from q36eval.engines.layer_pass import LayerPass, Segment
from q36eval.errors import CorruptCheckpointError
from tests.q36eval.checkpoints.architectures import saved, tiny_model
from tests.raising import raises

from .inspection.damage import Tensors, config, edit_tensors

PUBLISHED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
"""What the published configuration lists as not converted."""
EXPERTS = "model.layers.1.mlp.experts"
TOKENS = torch.randint(3, 256, (2, 40), generator=torch.Generator().manual_seed(1))


def microscaled(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [experts, out, in / 32, 16] and scales of experts [experts, in, out], rounded to nearest."""
    groups = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scaled = groups / torch.exp2(exponent)
    code = (scaled.abs().unsqueeze(-1) - values).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = code[..., 0::2] | code[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


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
    assert ours.report.formats["routed experts"] == {"mxfp4": 4, "plain": 4}
    state = ours.model.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(state[name], value), name
    with torch.inference_mode():
        logits = theirs(TOKENS, use_cache=False).logits
        assert torch.equal(ours.model(TOKENS, use_cache=False).logits, logits)
        assert torch.equal(packed.model(TOKENS, use_cache=False).logits, logits)
        states = ours.model.model(TOKENS[:1], use_cache=False).last_hidden_state
    assert apart.layers is not None
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
    assert row.worst_bound_usage is not None
    assert row.worst_bound_usage <= 1


def test_one_exponent_that_is_off_is_found(plain: Path, published: Path, tmp_path: Path) -> None:
    scales = load_file(published / "model.safetensors")[f"{EXPERTS}.down_proj_scales"]
    scales[2, 5, 1] += 2
    damaged = quantized(plain, tmp_path / "damaged", down_proj_scales=scales)
    assert ("beyond-scheme", f"{EXPERTS}.down_proj") in found(inspect_checkpoint(damaged, plain))


def test_a_scale_that_is_missing_or_of_another_shape_is_refused(plain: Path, tmp_path: Path) -> None:
    scales = torch.full((4, 64, 3), 127, dtype=torch.uint8)
    with raises(CorruptCheckpointError, "tensor-shape", f"{EXPERTS}.down_proj"):
        load_model(quantized(plain, tmp_path / "shape", down_proj_scales=scales))
    folder = quantized(plain, tmp_path / "missing")
    edit_tensors(folder, lambda tensors: tensors.pop(f"{EXPERTS}.down_proj_scales"))
    with raises(CorruptCheckpointError, "tensor-missing", f"{EXPERTS}.down_proj_scales"):
        load_model(folder)


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
