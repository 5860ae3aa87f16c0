"""`q36eval doctor --base-url`: what a server is and can do is what was seen of it, and no secret is printed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from q36eval.app.doctor import diagnosis, endpoint_lines
from q36eval.config import Paths
from q36eval.engines import Engine, EngineOptions
from q36eval.engines.openai.client import Address, Client
from q36eval.engines.openai.examination import examined
from q36eval.engines.openai.flavour import server_of
from q36eval.errors import EngineError
from tests import commands
from tests.q36eval.openai.server import SANDBOX, Handler, Served, serving

KEY = "s3cret-key"


class _WithChat(Handler):
    """Beside completions a chat endpoint that writes prompts by the branch's template."""

    takes: frozenset[str] = frozenset({"tools", "chat_template_kwargs"})
    """What it does not ignore."""
    parses = True

    @override
    def answer(self, body: Mapping[str, Any]) -> None:
        if self.path != "/v1/chat/completions":
            super().answer(body)
            return
        tools = body.get("tools") if "tools" in self.takes else None
        switch = body.get("chat_template_kwargs", {}) if "chat_template_kwargs" in self.takes else {}
        text = self.served.engine.tokenizer.apply_chat_template(
            body["messages"], tools=tools, tokenize=False, add_generation_prompt=True, **switch
        )
        message: dict[str, Any] = {"role": "assistant", "content": "<tool_call>\n<function=get_weather>"}
        if self.parses and tools:
            message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
        usage = {"prompt_tokens": len(self.served.ids_of(text)), "completion_tokens": 1}
        self._send(200, {"model": self.served.name, "choices": [{"index": 0, "message": message}], "usage": usage})


@pytest.fixture
def handler() -> type[_WithChat]:
    return type("Handler", (_WithChat,), {})


@pytest.fixture
def options(served: Served, handler: type[_WithChat], monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineOptions]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(served, handles=handler) as address:
        yield EngineOptions(kind="openai", base_url=address, batch_rows=4)


@pytest.mark.long
def test_of_a_server_with_all_log_probabilities_everything_is_measured(options: EngineOptions) -> None:
    seen = examined(options, options.of(SANDBOX))
    assert (seen["flavour"], seen["version"], seen["model"], seen["context"]) == ("vllm", "0.26.0", "sandbox", 4096)
    assert seen["tells_its_start"]
    assert seen["chat"]["chat"] == "answers"
    assert seen["chat"]["tools"] == "read by the server's parser"
    branch = seen["branch"]
    assert (branch["prompt_log_probabilities"], branch["vocabulary"]) == (1024, 1024)
    assert branch["prompts"] == "token ids, in lists"
    assert branch["scatter"] == {"at_once": 4, "compared": 4, "differing": 0}
    assert branch["measurable"]["kl"].startswith("exact")


@pytest.mark.long
def test_of_the_likeliest_tokens_and_of_none_less_is_measured(options: EngineOptions, served: Served) -> None:
    served.max_logprobs = 20
    seen = examined(options, options.of(SANDBOX))
    assert seen["branch"]["prompt_log_probabilities"] == 20
    assert seen["branch"]["measurable"]["kl"].startswith("not: ")
    served.shape = "llama.cpp"
    seen = examined(options, options.of(SANDBOX))
    assert seen["branch"]["prompt_log_probabilities"] == 0
    assert seen["branch"]["measurable"]["kl"].startswith("not: ")


def test_what_a_chat_endpoint_ignores_counts_as_ignored(options: EngineOptions, handler: type[_WithChat]) -> None:
    handler.takes = frozenset()
    seen = examined(options, None)
    assert seen["branch"] is None, "without the branch its tokens are not tried"
    assert "--branch" in dict(endpoint_lines(seen))["measures"]
    chat = seen["chat"]
    assert chat["tools"] == "ignored: the prompt is as long without them"
    assert chat["thinking_switch"] == "changes nothing in the prompt"
    handler.takes, handler.parses = frozenset({"tools"}), False
    chat = examined(options, None)["chat"]
    assert chat["tools"] == "written into the prompt; a call stays in the text, which no parser reads"


def test_a_server_that_is_not_there_is_a_problem_and_the_rest_is_told() -> None:
    def gone() -> dict[str, Any]:
        raise EngineError("server-silent", "The server http://127.0.0.1:1/v1 does not answer: x.")

    body = diagnosis(Paths.default(), endpoint=gone)
    assert body["endpoint"] is None
    assert body["problems"][-1] == "The server http://127.0.0.1:1/v1 does not answer: x."
    assert body["devices"]


@pytest.mark.long
def test_the_command_prints_no_key(options: EngineOptions, tmp_path: Path) -> None:
    command = ("doctor", "--base-url", str(options.base_url), "--branch", str(SANDBOX))
    for more in ((), ("--json",)):
        done = commands.q36eval(*command, *more, state=tmp_path)
        assert done.returncode == 0, done.stderr
        assert KEY not in done.stdout + done.stderr
        assert "token ids, in lists" in done.stdout
    assert commands.q36eval("doctor", "--branch", "x", state=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("shape", "page", "version"),
    [
        ("sglang", "/server_info", "0.26.0"),
        ("sglang", "/get_server_info", "0.26.0"),
        ("vllm", "", "0.26.0"),
        ("llama.cpp", "", "0.26.0"),
        ("unknown", "", "unknown"),
    ],
)
def test_a_program_is_known_by_its_models_and_gives_its_version(
    local: Engine, shape: str, page: str, version: str
) -> None:
    """SGLang was never run here: its answers are as its public API reference describes them."""
    with serving(Served(local, shape=shape, sglang_page=page)) as url:
        client = Client(Address(url))
        server = server_of(client, None)
        client.close()
    assert (server.flavour, server.version, server.started is None) == (shape, version, shape != "vllm")
    assert server.model.max_model_len == (Served.context if shape in ("vllm", "llama.cpp") else None)
