"""A perturbed engine computes the same thing another way: close to an independent computation, by another path."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from q36eval.engines import ScoreRequest, perturbation
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.perturbation import (
    Decoded,
    InOtherCompany,
    LeftPadded,
    OneByOne,
    OnGPU,
    OtherKernels,
    perturbations,
)
from tests.q36eval.scoring import passes, states_of
from tests.q36eval.test_references import IDENTITY
from tests.small_models import random_model, random_prompts

TOKENIZER = SimpleNamespace(eos_token_id=1, pad_token_id=0)
SAME = 2e-4
"""Greatest difference of a final hidden state (of size 1 to 4) that another order of float32 sums may leave."""


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


@pytest.fixture(scope="module")
def requests() -> list[ScoreRequest]:
    texts = random_prompts([3, 17, 40, 130, 70, 5, 66, 12])
    return [ScoreRequest(f"{len(text)}", tuple(text), 1 + len(text) // 4) for text in texts]


@pytest.fixture(scope="module")
def alone(model: Any, requests: list[ScoreRequest]) -> dict[str, torch.Tensor]:
    """The scored states by transformers alone: one document at a time, whole, unpadded, without a cache."""
    with torch.inference_mode():
        return {
            r.key: model.model(input_ids=torch.tensor([r.token_ids])).last_hidden_state[0, r.first - 1 : -1]
            for r in requests
        }


@pytest.mark.long
@pytest.mark.parametrize("kind", [InProcessEngine, LeftPadded, OneByOne, InOtherCompany, Decoded, OtherKernels])
def test_every_perturbation_computes_what_transformers_computes_alone(
    kind: type[InProcessEngine],
    model: Any,
    requests: list[ScoreRequest],
    alone: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("q36eval.engines.resident.usable_workers", lambda: 1)
    with passes(model) as seen:
        found = states_of(kind(model, TOKENIZER, IDENTITY), requests)
    longest = max(len(request.token_ids) for request in requests)
    paths = {
        InProcessEngine: [(8, longest)],
        LeftPadded: [(8, longest + perturbation.SHIFT)],
        OneByOne: [(1, len(request.token_ids)) for request in requests],
        Decoded: [(8, 1)] * (longest - 1),
    }
    assert sorted(seen) == sorted(paths.get(kind, seen)), "it takes the path that it names"
    for key, states in found.items():
        assert states.shape == alone[key].shape
        assert float((states - alone[key]).abs().max()) < SAME, key


def test_another_batch_is_another_company(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "SCORE_BATCH_TOKENS", 200)
    rows = [ScoreRequest(str(n), tuple(range(2, 2 + n)), 1) for n in (40, 41, 9, 10)]
    batches = [[r.key for r in b] for b in InOtherCompany(model, TOKENIZER, IDENTITY)._score_batches(rows)]
    assert batches == [["10", "40"], ["41", "9"]]  # by content and 100 tokens at most, not by length


def test_other_kernels_are_put_back_whatever_happens(model: Any) -> None:
    before = model.config._attn_implementation, model.config._experts_implementation
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda *_: seen.append((model.config._attn_implementation, model.config._experts_implementation))
    )
    engine = OtherKernels(model, TOKENIZER, IDENTITY)
    engine._score_batch([ScoreRequest("x", (3, 4, 5), 1)])
    with pytest.raises(IndexError):
        engine._score_batch([ScoreRequest("x", (3, 10**6), 1)])  # no such token
    hook.remove()
    assert seen == [("eager", "eager")] * 2
    assert before == ("sdpa", "grouped_mm")
    assert (model.config._attn_implementation, model.config._experts_implementation) == before


def test_what_cannot_be_had_says_why(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = {p.name: p.skipped for p in perturbations(InProcessEngine(model, TOKENIZER, IDENTITY))}
    assert {name: reason for name, reason in found.items() if reason} == {
        "device": "there is no GPU",
        "another-engine": "no other engine is at hand",
    }
    assert {"left-padding", "batch-of-one", "another-batch", "decode", "bf16-logits"} <= found.keys()


def test_another_device_is_run_by_a_copy_in_a_process_of_its_own(
    model: Any, requests: list[ScoreRequest], alone: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to the GPU, where there is none with the CPU in its place: this process runs nothing."""
    has_gpu = torch.cuda.device_count() > 0
    monkeypatch.setattr(perturbation, "FORKED_DEVICE", "cuda:0" if has_gpu else "cpu")
    with passes(model) as seen:
        found = states_of(OnGPU(model, TOKENIZER, IDENTITY), requests)
    assert seen == []
    allowed = 1e-2 if has_gpu else SAME  # TF32 may round products
    assert max(float((found[key] - alone[key]).abs().max()) for key in alone) < allowed
