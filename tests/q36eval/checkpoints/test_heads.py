"""The draft head: loaded strictly beside the model, and computed as its definition says.

A checkpoint's own head alone gives the logits of the whole model, bit for bit.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.draft import DraftHead, load_draft_head
from q36eval.engines import EngineSettings, ScoreRequest, open_engine
from q36eval.engines.head import Head
from q36eval.engines.numerics import float32_logits
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError
from tests.draft_heads import SANDBOX, head_tensors, with_head
from tests.q36eval.checkpoints.inspection.damage import config, edit_tensors, fused
from tests.q36eval.scoring import states_of
from tests.raising import raises


def loaded(folder: Path) -> Any:
    return load_draft_head(open_checkpoint(folder), torch.device("cpu"), torch.bfloat16, emulate_activations=True)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm whose stored weight is one less than what it multiplies by."""
    scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (scaled * (1 + weight.float())).bfloat16()


def test_it_is_the_token_then_the_state_through_one_layer(tmp_path: Path) -> None:
    """Against the definition, with transformers' own decoder layer alone in between."""
    tensors = head_tensors(256)
    head: DraftHead = loaded(with_head(tmp_path / "branch", tensors))
    states, embedded = (torch.randn(2, 20, 256, generator=torch.Generator().manual_seed(5)) * 2).bfloat16()
    joined = torch.cat(
        [
            normed(embedded, tensors["mtp.pre_fc_norm_embedding.weight"]),
            normed(states, tensors["mtp.pre_fc_norm_hidden.weight"]),
        ],
        dim=-1,
    )
    inputs = torch.nn.functional.linear(joined, tensors["mtp.fc.weight"]).unsqueeze(0)
    positions = torch.arange(7, 27).unsqueeze(0)
    with torch.no_grad():
        rotary = head.rotary_emb(inputs, positions.expand(3, 1, -1))
        layer = head.layers[0](inputs, position_embeddings=rotary, attention_mask=None, position_ids=positions)
    expected = normed(layer[0], tensors["mtp.norm.weight"])
    assert torch.equal(head.states(states, embedded, 7), expected)
    # a rotation is relative: another first position alone changes little, another order of the halves all
    assert not torch.allclose(head.states(embedded, states, 7).float(), expected.float(), atol=0.05)


def test_guesses_read_the_text_and_the_guess_before(tmp_path: Path) -> None:
    engine: Any = open_engine(EngineSettings(with_head(tmp_path / "branch", head_tensors(256))))
    assert engine.drafts
    states = torch.randn(12, 256, generator=torch.Generator().manual_seed(6)).bfloat16()
    tokens = list(range(40, 52))
    embedded = engine.model.model.embed_tokens(torch.tensor(tokens))
    first = engine.draft_head.states(states[:11], embedded[:11], 30)
    second = engine.draft_head.states(first[:10], embedded[1:11], 31)
    drafted = engine.drafted(states, tokens, 30, 2)
    assert [len(rows) for rows in drafted] == [11, 10]
    assert torch.equal(drafted[0], first)
    assert torch.equal(drafted[1], second)
    assert len(engine.drafted(states[:2], tokens[:2], 0, 3)) == 1  # a text ends before the further guesses
    later = engine.drafted(states, [*tokens[:6], 99, *tokens[7:]], 30, 1)[0]
    assert torch.equal(later[:6], first[:6])  # no guess sees a token that follows it
    assert not torch.equal(later[6:], first[6:])


def test_experts_may_be_fused_and_the_layout_multimodal(tmp_path: Path) -> None:
    apart = head_tensors(256)
    one, other = loaded(with_head(tmp_path / "apart", apart)), loaded(with_head(tmp_path / "fused", fused(apart)))
    prefixed = loaded(with_head(tmp_path / "prefixed", {f"model.{name}": tensor for name, tensor in apart.items()}))
    for head in (other, prefixed):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.parameters(), head.parameters(), strict=True))


UP = "mtp.layers.0.mlp.experts.5.up_proj.weight"
SECOND_LAYER = {"mtp.layers.1.input_layernorm.weight": torch.ones(256)}
NOT_WHOLE: list[tuple[Any, dict[str, Any], type[Exception], tuple[str, ...]]] = [
    (lambda t: t.pop("mtp.fc.weight"), {}, CorruptCheckpointError, ("tensor-missing", "'mtp.fc.weight'")),
    (lambda t: t.pop(UP), {}, CorruptCheckpointError, ("tensor-missing", UP)),
    (lambda t: t.update(SECOND_LAYER), {}, CorruptCheckpointError, ("tensor-unexpected", "mtp.layers.1")),
    (lambda t: t.update({"mtp.norm.weight": torch.ones(255)}), {}, CorruptCheckpointError, ("tensor-shape", "[255]")),
    (lambda t: None, {"mtp_num_hidden_layers": 2}, UsageError, ("draft-head-unsupported", "2 layers")),
]


@pytest.mark.long
@pytest.mark.parametrize(("change", "config", "error", "expected"), NOT_WHOLE)
def test_what_is_not_a_whole_head_is_told_and_leaves_the_model_alone(
    tmp_path: Path, change: Any, config: dict[str, Any], error: type[Exception], expected: tuple[str, ...]
) -> None:
    tensors = head_tensors(256)
    change(tensors)
    folder = with_head(tmp_path / "branch", tensors, **config)
    with raises(error, *expected):
        loaded(folder)
    engine: Any = open_engine(EngineSettings(folder))
    assert not engine.drafts


def test_a_checkpoint_without_one_has_none() -> None:
    assert loaded(SANDBOX) is None
    assert not open_engine(EngineSettings(SANDBOX)).drafts


# -- the head

FP8_HEAD = SANDBOX.parent / "fp8-head"


@pytest.mark.parametrize("name", ["bf16", "fp8-head"])
def test_logits_are_the_whole_models(name: str) -> None:
    settings = EngineSettings(SANDBOX.parent / name)
    engine, head = open_engine(settings), Head.of(settings)
    states = states_of(engine, [ScoreRequest("x", tuple(range(20, 90)))])["x"]
    assert torch.equal(head.logits(states), engine.logits(states))


def test_only_a_head_that_takes_inputs_as_they_are_is_a_references() -> None:
    assert torch.equal(
        Head.of(EngineSettings(SANDBOX)).plain().weight,
        load_file(SANDBOX / "model.safetensors")["lm_head.weight"],
    )
    with raises(EngineError, "head-quantized"):
        Head.of(EngineSettings(FP8_HEAD)).plain()


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_head_there_are_the_embeddings_where_they_are_tied_and_nothing_else(
    tied: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "headless"
    shutil.copytree(SANDBOX, folder)
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    config(tie_word_embeddings=tied)(folder)
    if tied:
        embeddings = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(Head.of(EngineSettings(folder)).plain().weight, embeddings)
    else:
        with raises(CorruptCheckpointError, "tensor-missing", "lm_head.weight"):
            Head.of(EngineSettings(folder))


def test_a_head_that_changed_gives_other_logits() -> None:
    """Its float32 copy is kept between calls."""
    weight, states = torch.randn(8, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    before = float32_logits(states, weight)
    assert torch.equal(float32_logits(states, weight), before)
    weight.mul_(2)
    assert torch.equal(float32_logits(states, weight), 2 * before)
    assert torch.equal(float32_logits(states, weight.clone() * 2), 4 * before)
