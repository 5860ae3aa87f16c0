"""Whether two addresses lead to one server: asked of servers of ours, and of counts as they may come."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines import Engine, EngineSettings
from q36eval.engines.openai.client import NoAnswerError, RefusedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError
from q36eval.served import sameness
from q36eval.served.sameness import are_one
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.served.chat_server import Chatting, chatting
from tests.raising import raises

START = 1.75e9


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sameness, "COUNTED_SECONDS", 0.3)


def endpoint(address: str) -> Endpoint:
    return Endpoint.load(EngineSettings(SANDBOX, kind="openai", base_url=address))


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ({"started": START}, {"started": START + 1}, False),
        ({"started": START}, {"started": START}, False),
        ({"tells_start": False}, {"tells_start": False}, False),
        ({"tells_start": False, "counts_prompts": False}, {"started": START}, False),
        ({"started": START}, {"tells_start": False, "counts_prompts": False}, False),
        ({"started": START, "counts_prompts": False}, {"started": START, "counts_prompts": False}, None),
    ],
)
def test_two_servers(local: Engine, first: dict[str, Any], second: dict[str, Any], one: bool | None) -> None:
    with (
        chatting(Chatting(local, max_logprobs=20, **first)) as here,
        chatting(Chatting(local, max_logprobs=20, **second)) as there,
    ):
        assert are_one(endpoint(here), endpoint(there)) is one


@pytest.mark.long
@pytest.mark.parametrize("how", [{}, {"tells_start": False}])
def test_one_server_by_two_names(local: Engine, how: dict[str, Any]) -> None:
    with chatting(Chatting(local, max_logprobs=20, **how)) as address:
        assert are_one(endpoint(address), endpoint(address.replace("127.0.0.1", "localhost"))) is True


def told(*counts: int | None, answer: Exception | None = None) -> Any:
    """An endpoint whose page tells these counts, one at a time, and the last one from then on."""

    def each() -> Iterator[int | None]:
        yield from counts
        while True:
            yield counts[-1]

    page = each()

    def complete(prompt: list[int], budget: int) -> None:
        if answer is not None:
            raise answer

    return SimpleNamespace(
        name="server",
        server=SimpleNamespace(started="1"),
        tokenizer=SimpleNamespace(encode=lambda text, add_special_tokens: [1]),
        prompt_tokens=lambda: next(page),
        complete=complete,
    )


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ((5, 6), (7,), False),
        ((5, 6), (7, 7, 8, 8, 9, 9, 10), True),
        ((5, None, 5), (7, 7, 7), None),
        ((5, None, 6), (7, 7, 7), False),
        ((5, 6), (7, 7, None), None),
        ((None,), (7,), False),
        ((None,), (7, 7, 8, 8, 9, 9, 10), True),
    ],
    ids=["two", "one", "a lost page is no count", "counted late", "lost while watched", "a gateway, two", "a gateway"],
)
def test_what_counts_say(first: tuple[int | None, ...], second: tuple[int | None, ...], one: bool | None) -> None:
    assert are_one(told(*first), told(*second)) is one


def test_a_count_that_rises_for_another_reason_is_watched_again() -> None:
    assert are_one(told(5, 6, 6, 7), told(7, 7, 9, 9)) is False


def test_who_does_not_answer_is_not_taken_for_the_other() -> None:
    assert are_one(told(5, answer=RefusedError(400, "no")), told(7)) is None
    with raises(EngineError, "server-silent"):
        are_one(told(5, answer=NoAnswerError("gone")), told(7))
