"""The in-process engine against transformers' own forward pass and `generate`, for every supported architecture.

What each supports is the table next to this file, which is measured here and printed.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.kv_cache import install
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.placements import LAYERS
from q36eval.engines.abilities import tried
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.layer_pass import LayerPass, Segment, check_layers_alone
from q36eval.engines.logits import LogitsForm
from q36eval.engines.parts import parts_of
from q36eval.engines.resident import ResidentEngine
from q36eval.errors import UsageError
from tests.q36eval.checkpoints.architectures import NAMES, quantize, saved, tiny_model
from tests.q36eval.test_references import IDENTITY
from tests.raising import raises

STOP = 2


class Numbers:
    """A tokenizer whose text is its token ids."""

    eos_token_id, pad_token_id = STOP, 0

    def decode(self, ids: list[int], **_settings: Any) -> str:
        return " ".join(map(str, ids))


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ResidentEngine:
    """In float32, in one process."""
    monkeypatch.setattr(ResidentEngine, "_workers", lambda _: 1)
    model = tiny_model(request.param).float()
    model.generation_config.eos_token_id = STOP
    return ResidentEngine(model, Numbers(), IDENTITY)


def drawn(generator: torch.Generator, length: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 256, (length,), generator=generator).tolist())


@torch.inference_mode()
def own_states(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    return base_of(model)(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]


@pytest.mark.long
def test_scores_are_those_of_a_full_forward_pass(engine: ResidentEngine) -> None:
    """Alone, padded, and after a prefix that eight texts share."""
    generator = torch.Generator().manual_seed(3)
    texts = [drawn(generator, length) for length in (50, 41, 30, 20, 9)]
    prefix = drawn(generator, 130)
    after = [prefix + drawn(generator, length) for length in (20, 15, 9, 12, 14, 11, 10, 13)]
    requests = [ScoreRequest(f"alone {at}", text) for at, text in enumerate(texts)]
    requests += [ScoreRequest(f"after {at}", text, first=131, shared=130) for at, text in enumerate(after)]
    for scored in engine.score(requests):
        assert scored.error is None
        request = scored.request
        own = own_states(engine.model, request.token_ids)[request.first - 1 : -1]
        assert torch.allclose(scored.hidden_states, own, rtol=0, atol=2e-5 * float(own.abs().max())), request.key


@pytest.mark.long
def test_greedy_answers_are_those_of_generate_or_part_at_a_tie(engine: ResidentEngine) -> None:
    generator = torch.Generator().manual_seed(4)
    prompts = [drawn(generator, length) for length in (30, 24, 21, 7, 28, 3)]
    budgets = [24, 24, 6, 24, 24, 24]
    requests = [
        GenerationRequest(str(at), prompt, max_new_tokens=budget)
        for at, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True))
    ]
    for answer in engine.generate(requests):
        assert answer.error is None
        prompt, budget = answer.request.token_ids, answer.request.max_new_tokens
        with torch.inference_mode():
            own = engine.model.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=budget, do_sample=False, pad_token_id=0
            )[0, len(prompt) :].tolist()
        own = own[: own.index(STOP)] if STOP in own else own
        parts = next((at for at, pair in enumerate(zip(answer.token_ids, own, strict=False)) if len({*pair}) > 1), None)
        if parts is None:
            assert len(answer.token_ids) == len(own)
            continue
        logits = engine.logits(own_states(engine.model, (*prompt, *own[:parts]))[-1:])[0]
        assert abs(float(logits[answer.token_ids[parts]] - logits[own[parts]])) < 1e-4, answer.request.key


@pytest.mark.long
def test_every_parameter_is_in_a_part_of_a_known_class(engine: ResidentEngine) -> None:
    """Attribution exchanges parts: one that is missing would be a hole in the blame, and `other` tells nobody where."""
    parts = parts_of(engine)
    assert "other" not in {part.tensor_class for part in parts}
    assert len({part.module for part in parts}) == len(parts)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_layers_alone_give_the_same_states(name: str, tmp_path: Path) -> None:
    """All tokens at once bit for bit, in chunks of 16 up to the order of sums."""
    folder = saved(name, tmp_path / "model")
    whole = load_model(folder, dtype=torch.float32).model
    apart = load_model(folder, dtype=torch.float32, placement=LAYERS)
    assert apart.layers is not None
    if name in ("gpt2", "granite"):
        with raises(UsageError, "placement-unsupported"):
            check_layers_alone(apart.model)
        return
    check_layers_alone(apart.model)
    tokens = drawn(torch.Generator().manual_seed(5), 40)
    own = own_states(whole, tokens)
    for chunk in (40, 16):
        one = LayerPass(apart.model, apart.layers, [Segment(torch.tensor([tokens]))], chunk=lambda *_, size=chunk: size)
        one.run(lambda _done, _of: None)
        assert not one.errors
        (states,) = one.hidden_states
        assert torch.allclose(states[0], own, rtol=0, atol=0 if chunk == 40 else 1e-5)


TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def _worked(call: Any) -> str:
    try:
        call()
    except UsageError:
        return "refused"
    return "yes"


def _row(name: str, folder: Path) -> list[str]:
    plain = saved(name, folder / "plain")
    model = load_model(plain).model
    form = LogitsForm.of(model.config)
    bias = "bias" if model.get_output_embeddings().bias is not None else ""
    tied = "tied" if model.config.tie_word_embeddings else ""
    abilities = tried(model)
    layers = _worked(lambda: check_layers_alone(model))
    kv_cache = _worked(lambda: (install(model, "fp8_e4m3", {}), tried(model)))
    quantized = saved(name, folder / "fp8")
    weights = quantize(quantized, inputs=True)
    inputs = _worked(lambda: load_model(quantized))
    named = [f"{part} {value:g}" for part, value in asdict(form).items() if value is not None]
    logits = ", ".join([*filter(None, [tied, bias]), *named]) or "plain"
    shares = "no" if "shared prefixes" in abilities.missing else "yes"
    return [name, logits, shares, layers, kv_cache, inputs if weights else "none"]


@pytest.mark.long
def test_the_table_of_architectures(tmp_path: Path) -> None:
    rows = [["architecture", "logits", "shared prefixes", "layer by layer", "FP8 KV cache", "quantized inputs"]]
    rows += [_row(name, tmp_path / name) for name in NAMES]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    assert "\n".join(lines) == TABLE.strip()
