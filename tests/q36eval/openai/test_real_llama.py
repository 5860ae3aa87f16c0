"""SmolLM2 in Q4_1, served by a real llama.cpp: what it answers is read rightly, and what only a served model shows.

`Q36EVAL_LLAMA_CPP` names a folder with its sources and its server (`.ci/llama-cpp`); without it these are skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from q36eval.app.derived_family import derive_family
from q36eval.config import Paths
from q36eval.engines import Engine, EngineSettings, open_engine
from q36eval.engines.base import GenerationRequest
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.gate import CriterionVerdict
from q36eval.served.declared_server import Plan
from tests import smollm2
from tests.q36eval.openai.server import opened
from tests.q36eval.openai.test_real_vllm import assert_most_answers_are_its_own
from tests.q36eval.openai.vllm_server import free_port, running
from tests.q36eval.served.judging import judged

TEXTS = [f"The capital of {country} is" for country in ("France", "Italy", "Spain", "Japan")]
LLAMA = os.environ.get("Q36EVAL_LLAMA_CPP")
OF_CALLS = ("parser-arguments", "parser-calls", "parser-finish", "parser-thought", "served-calls")
NEEDS = {"served-conversation": "cache_salt", "served-eviction": "KV cache"}
NEEDS |= dict.fromkeys(OF_CALLS, "no tools and no reasoning")
"""What llama.cpp or this model's template shows nothing of, and for want of what."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp"),
]


@pytest.fixture(scope="module")
def local() -> Engine:
    """It in this process, decoded to BF16."""
    return opened(smollm2.folder(rescaled=False))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its GGUF as it was published, served for four at once with 4,096 tokens each."""
    llama, folder = Path(str(LLAMA)), tmp_path_factory.mktemp("llama")
    command = [llama / "build" / "bin" / "llama-server", "--model", smollm2.gguf(), "--alias", "smollm2"]
    command += ["--jinja", "--threads", 1, "--parallel", 4, "--ctx-size", 4 * 4096]
    with running(command, free_port(), folder / "log", "llama-server") as url:
        yield url


def test_a_real_llama_cpp_answers_as_the_model_does(local: Engine, address: str) -> None:
    ids = [tuple(local.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]
    questions = [GenerationRequest(str(n), one, 3, stop=(".",) if n % 2 else ()) for n, one in enumerate(ids)]
    engine = open_engine(EngineSettings(smollm2.folder(rescaled=False), kind="openai", base_url=address, batch_rows=4))
    assert engine.identity.engine_version.startswith("llama.cpp ")
    assert engine.identity.settings["prompts"] == "token ids"
    assert engine.scores == "nothing"
    assert_most_answers_are_its_own(local, engine, questions)
    too_long = GenerationRequest("long", ids[0] * (4096 // len(ids[0]) + 1), 24)
    (refused,) = engine.generate([too_long])
    assert refused.error == f"{len(too_long.token_ids)} tokens and 24 more do not fit the server's context of 4096"


def test_ids_and_likeliest_tokens_of_a_real_llama_cpp_are_those_of_its_answer(local: Engine, address: str) -> None:
    endpoint = Endpoint.load(EngineSettings(smollm2.folder(rescaled=False), kind="openai", base_url=address))
    prompt = local.tokenizer.encode(TEXTS[1], add_special_tokens=False)
    said = endpoint.complete(prompt, 16)
    streamed = endpoint.complete(prompt, 16, stream=True)
    endpoint.close()
    assert said.row_ids is not None
    assert said.log_probs is not None
    assert [max(row, key=row.__getitem__) for row in said.log_probs] == list(said.row_ids)
    assert said.token_ids is None or local.tokenizer.decode(said.token_ids).startswith(said.text)
    assert streamed.text == said.text


def test_a_real_llama_cpp_raises_no_alarm_and_what_it_cannot_show_is_named(address: str, tmp_path: Path) -> None:
    branch = smollm2.folder(rescaled=False)
    few = Plan(items=2, conversations=1, turns=2, concurrency=4, load_requests=4)
    found = judged(address, tmp_path, few, branch=branch, family=derive_family(branch, Paths.default()))
    assert not found.failed
    assert all(found.verdicts[name] is CriterionVerdict.NOT_MEASURED for name in NEEDS)
    assert all(any(what in trouble for trouble in found.troubles) for what in NEEDS.values())
