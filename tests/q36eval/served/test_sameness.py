"""Whether two addresses lead to one server: by counts as they may come; of real servers test_against asks it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines.openai.client import NoAnswerError, RefusedError
from q36eval.errors import EngineError
from q36eval.served import same_server
from q36eval.served.same_server import are_one
from tests.raising import raises


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_server, "COUNTED_SECONDS", 0.3)


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
        ((None,), (None,), None),
    ],
    ids=[
        "two",
        "one",
        "a lost page is no count",
        "counted late",
        "lost while watched",
        "a gateway, two",
        "a gateway",
        "two gateways",
    ],
)
def test_what_counts_say(first: tuple[int | None, ...], second: tuple[int | None, ...], one: bool | None) -> None:
    assert are_one(told(*first), told(*second)) is one


def test_a_count_that_rises_for_another_reason_is_watched_again() -> None:
    assert are_one(told(5, 6, 6, 7), told(7, 7, 9, 9)) is False


def test_who_does_not_answer_is_not_taken_for_the_other() -> None:
    assert are_one(told(5, answer=RefusedError(400, "no")), told(7)) is None
    with raises(EngineError, "server-silent"):
        are_one(told(5, answer=NoAnswerError("gone")), told(7))
