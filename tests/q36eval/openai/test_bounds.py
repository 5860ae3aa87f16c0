"""No more of an answer is read than what was requested can have, and a page kept from us is one that there is not."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from typing_extensions import override

from q36eval.engines import Engine, EngineSettings, GenerationRequest, open_engine
from q36eval.engines.openai.client import Address, Client, TooLongError, expected_bytes
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.engines.openai.engine import OpenAIEngine
from tests.q36eval.openai.server import SANDBOX, Handler, Served, serving

BASE = "http://127.0.0.1:1/v1"
BODY = {"model": "sandbox", "prompt": [1, 2, 3], "max_tokens": 1}
PIECE = b"x" * 2**20


class Endless(httpx.SyncByteStream):
    """An answer without an end; counts what was taken of it."""

    def __init__(self) -> None:
        self.pieces = 0

    @override
    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.pieces += 1
            yield PIECE


def answered_by(response: httpx.Response) -> Client:
    client = Client(Address(BASE), pause=lambda _: None)
    client._http = httpx.Client(transport=httpx.MockTransport(lambda _: response))
    return client


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("body", [BODY, None], ids=["answer", "page"])
def test_what_has_no_end_is_one_error_and_read_as_far_as_was_asked_for(body: Any, status: int) -> None:
    answer = Endless()
    client = answered_by(httpx.Response(status, stream=answer))
    with pytest.raises(TooLongError):
        client.get(f"{BASE}/models", str) if body is None else client.post(f"{BASE}/completions", body, str)
    assert answer.pieces <= expected_bytes(body, None) // len(PIECE) + 1
    assert (client.sent, client.unsound) == (1, 1)


def test_what_is_asked_for_says_how_much_may_come() -> None:
    whole = {**BODY, "prompt": list(range(200)), "prompt_logprobs": -1}
    assert expected_bytes(whole, 248_320) > 200 * 248_320 * 100, "as vLLM writes an entry, with room"
    assert expected_bytes(whole, 943) < 2**26
    lists = {**BODY, "prompt": [[1] * 200] * 32, "logprobs": 943}
    assert expected_bytes(lists, 943) > 32 * 943 * 100
    assert expected_bytes(BODY, 248_320) < 2**25
    assert expected_bytes({**BODY, "max_tokens": 4096, "stream": True, "logprobs": 5}, None) > 4096 * 2048
    assert expected_bytes({"messages": [], "max_tokens": 512}, None) > 512 * 2048


class Guarded(Handler):
    """A gateway that lets the API through, and nothing beside it."""

    status = 403

    @override
    def _send(self, status: int, content: Any) -> None:
        if not self.path.startswith("/v1/"):
            status, content = self.status, {"error": {"message": "no"}}
        super()._send(status, content)


@pytest.mark.long
@pytest.mark.parametrize("status", [401, 403])
def test_pages_beside_the_api_that_are_refused_leave_only_what_needs_them(local: Engine, status: int) -> None:
    with serving(Served(local), handles=type("Handler", (Guarded,), {"status": status})) as url:
        settings = EngineSettings(SANDBOX, kind="openai", base_url=url)
        engine = open_engine(settings)
        assert isinstance(engine, OpenAIEngine)
        assert (engine.scores, engine.identity.engine_version) == ("states", "vllm unknown")
        (answer,) = engine.generate([GenerationRequest("x", (1, 2, 3), 4)])
        assert answer.error is None
        with closing(Endpoint.load(settings)) as endpoint:
            assert endpoint.cache_state() is None
            endpoint.confirm()
