"""A checkpoint's head on its own gives the logits of the whole model, bit for bit."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from q36eval.engines import EngineSettings, ScoreRequest, open_engine
from q36eval.engines.head import Head
from q36eval.engines.numerics import float32_logits
from q36eval.errors import CorruptCheckpointError, EngineError
from tests.q36eval.checkpoints.inspection.damage import SANDBOX, config, edit_tensors
from tests.q36eval.scoring import states_of
from tests.raising import raises


@pytest.mark.parametrize("name", ["bf16", "fp8-head"])
def test_logits_are_the_whole_models(name: str) -> None:
    settings = EngineSettings(SANDBOX / name)
    engine, head = open_engine(settings), Head.of(settings)
    states = states_of(engine, [ScoreRequest("x", tuple(range(20, 90)))])["x"]
    assert torch.equal(head.logits(states), engine.logits(states))


def test_only_a_head_that_takes_inputs_as_they_are_is_a_references() -> None:
    assert torch.equal(
        Head.of(EngineSettings(SANDBOX / "bf16")).plain().weight,
        load_file(SANDBOX / "bf16" / "model.safetensors")["lm_head.weight"],
    )
    with raises(EngineError, "head-quantized"):
        Head.of(EngineSettings(SANDBOX / "fp8-head")).plain()


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_head_there_are_the_embeddings_where_they_are_tied_and_nothing_else(
    tied: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "headless"
    shutil.copytree(SANDBOX / "bf16", folder)
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
