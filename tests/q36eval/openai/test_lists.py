"""Few positions of a long text are requested together, as one list of prompts, and each is held to its own prompt."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.openai.answers import Completion, completions_of, next_row
from q36eval.engines.openai.client import MalformedError
from tests.q36eval.openai import server
from tests.q36eval.openai.server import NATS, Served, log_probs

TEXT = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. " * 8
FEW = 4


def few_of_many(engine: Engine) -> ScoreRequest:
    ids = tuple(engine.tokenizer.encode(TEXT, add_special_tokens=False))
    return ScoreRequest("few", ids, first=len(ids) - FEW)


@pytest.mark.long
def test_few_positions_of_a_long_text_are_one_request(settings: EngineSettings, served: Served, local: Engine) -> None:
    engine, request = open_engine(settings), few_of_many(local)
    served.lists.clear()
    before = served.requests
    theirs = log_probs(engine, request)
    assert (served.lists, served.requests - before) == ([FEW], 1)
    assert float((theirs - log_probs(local, request)).abs().max()) < NATS
    assert engine.identity.settings["prompts"] == "token ids, in lists"


@pytest.mark.long
def test_most_positions_of_a_text_are_requested_with_the_text(
    settings: EngineSettings, served: Served, local: Engine
) -> None:
    engine, request = open_engine(settings), few_of_many(local)
    served.lists.clear()
    before = served.requests
    whole = ScoreRequest("whole", request.token_ids)
    assert len(log_probs(engine, whole)) == len(request.token_ids) - 1
    assert (served.lists, served.requests - before) == ([], 1)


@pytest.mark.long
def test_a_server_that_answers_a_list_in_another_order_is_asked_one_by_one(
    settings: EngineSettings, served: Served, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names its choices by their place: only the ids that come back show whose answer each is."""
    rows_of = server._rows_of

    def exchanged(given: Served, prompts: list[list[int]]) -> dict[tuple[int, ...], torch.Tensor]:
        rows = rows_of(given, prompts)
        return dict(zip(rows, reversed(rows.values()), strict=True))

    monkeypatch.setattr(server, "_rows_of", exchanged)
    engine, request = open_engine(settings), few_of_many(local)
    served.lists.clear()
    theirs = log_probs(engine, request)
    assert served.lists == []
    assert engine.identity.settings["prompts"] == "token ids"
    assert float((theirs - log_probs(local, request)).abs().max()) < NATS


@pytest.mark.parametrize("generated", [[1], [0, 1]])
def test_a_row_of_another_token_than_the_one_that_came_is_none(generated: list[int]) -> None:
    def of(ids: list[int]) -> Completion:
        logprobs = {"top_logprobs": [{"token_id:0": math.log(0.75), "token_id:1": math.log(0.25)}]}
        choice = {"index": 0, "text": "", "token_ids": ids, "logprobs": logprobs}
        return Completion.model_validate({"id": "x", "model": "m", "choices": [choice]})

    for fitting in ([0], []):
        assert next_row(of(fitting), 2, None).exp().tolist() == pytest.approx([0.75, 0.25])
    with pytest.raises(MalformedError, match="not those of the token that came"):
        next_row(of(generated), 2, None)


PROMPTS = [(1, 2, 3), (4, 5)]


def answer(**changes: Any) -> dict[str, Any]:
    choices = [
        {"index": index, "text": "x", "finish_reason": "length", "prompt_token_ids": list(prompt)}
        for index, prompt in enumerate(PROMPTS)
    ]
    return {"id": "x", "model": "m", "choices": choices, "usage": {"prompt_tokens": 5}} | changes


def test_choices_are_put_in_the_order_of_their_prompts() -> None:
    good = answer()
    turned = good | {"choices": good["choices"][::-1]}
    assert [each.choice.prompt_token_ids for each in completions_of(turned, PROMPTS)] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda good: {"choices": good["choices"][:1]}, "has choices"),
        (lambda good: {"choices": [good["choices"][0]] * 2}, "has choices"),
        (lambda good: {"choices": [{**each, "prompt_token_ids": [4, 5]} for each in good["choices"]]}, "other prompts"),
        (lambda good: {"choices": [{**each, "prompt_token_ids": None} for each in good["choices"]]}, "other prompts"),
        (lambda good: {"usage": {"prompt_tokens": 6}}, "counts 6 tokens of prompts that have 5"),
        (lambda good: {"usage": None}, "counts no tokens"),
    ],
)
def test_an_answer_that_is_not_one_to_the_list_is_none(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    with pytest.raises(MalformedError, match=words):
        completions_of(answer(**change(answer())), PROMPTS)
