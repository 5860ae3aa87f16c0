"""Of texts of which few tokens are read at each place, few log-probabilities are requested; what is read is exact.

Few positions of a long text are requested together, as one list of prompts, and each is held to its own prompt.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.openai.answers import Completion, completions_of, next_row, packed_row, spread_rows
from q36eval.engines.openai.client import MalformedError
from tests.q36eval.openai import server
from tests.q36eval.openai.server import NATS, Served, log_probs

LONG = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. " * 8
FEW = 4
TEXT = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. Kolik zaplatím? "


def request_of(engine: Engine, **reads: Any) -> ScoreRequest:
    ids = tuple(engine.tokenizer.encode(TEXT, add_special_tokens=False))
    return ScoreRequest("few", ids, first=4, **reads)


def alone(served: Served, request: ScoreRequest, row: int) -> torch.Tensor:
    """A row as it is where no more than its token and the server's own one come after it: another prefill, which moves
    BF16 by itself, and on some processors by its length."""
    begun = request.token_ids[: request.first + row + 1]
    return served.log_probs([*begun, 0])[request.first + row - 1]


@pytest.mark.long
def test_what_is_read_of_a_text_is_what_the_model_says(settings: EngineSettings, served: Served, local: Engine) -> None:
    whole = (2, 7)
    request = request_of(local, likeliest=3, whole=whole)
    own, theirs = log_probs(local, request), log_probs(open_engine(settings), request)
    assert theirs.shape == own.shape
    for row in whole:
        own[row] = alone(served, request, row)
    labels = torch.tensor(request.token_ids[request.first :])[:, None]
    assert float((theirs.gather(1, labels) - own.gather(1, labels)).abs().max()) < NATS
    best = own.topk(3)
    assert theirs.topk(3).indices.tolist() == best.indices.tolist()
    assert float((theirs.gather(1, best.indices) - best.values).abs().max()) < NATS
    assert float((theirs[list(whole)] - own[list(whole)]).abs().max()) < NATS
    assert float((theirs[3] - own[3]).abs().max()) > 0.1, "the rest of the other rows was not requested"
    assert theirs.exp().sum(-1).tolist() == pytest.approx([1.0] * len(own), abs=1e-5)


@pytest.mark.long
def test_a_server_whose_few_are_those_of_another_place_is_asked_for_all(
    settings: EngineSettings, served: Served, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = server._position

    def shifted(row: torch.Tensor, count: int, token: int) -> bytes:
        return position(row if count < 0 else row.roll(1), count, token)

    monkeypatch.setattr(server, "_position", shifted)
    engine, request = open_engine(settings), request_of(local, likeliest=2)
    assert float((log_probs(engine, request) - log_probs(local, request)).abs().max()) < NATS


def test_the_rest_of_a_row_is_shared_equally_and_never_likelier_than_what_is_listed() -> None:
    likeliest = [math.log(value) for value in (0.5, 0.3)]
    with_own = packed_row([4, 2, 0], [*likeliest, math.log(0.02)], 8, 2)
    without = packed_row([4, 2], likeliest, 8, 2)
    one, other = spread_rows(torch.stack([with_own, without]), 8).double().exp().tolist()
    assert one == pytest.approx([0.02, 0.036, 0.3, 0.036, 0.5, 0.036, 0.036, 0.036], abs=1e-7)
    assert other == pytest.approx([1 / 30, 1 / 30, 0.3, 1 / 30, 0.5, 1 / 30, 1 / 30, 1 / 30], abs=1e-7)
    # what a server rounds may leave more than fits under the least of them
    (rounded,) = spread_rows(packed_row([1, 0], [math.log(0.25), math.log(0.24)], 3, 2)[None], 3).exp()
    assert float(rounded[2]) == pytest.approx(0.24)
    (whole,) = spread_rows(packed_row([0, 1], [0.0, -math.inf], 4, 2)[None], 4)
    assert whole.tolist() == [0.0, -math.inf, -math.inf, -math.inf]


# -- few positions


def last_of_many(engine: Engine) -> ScoreRequest:
    ids = tuple(engine.tokenizer.encode(LONG, add_special_tokens=False))
    return ScoreRequest("few", ids, first=len(ids) - FEW)


@pytest.mark.long
def test_few_positions_of_a_long_text_are_one_request(settings: EngineSettings, served: Served, local: Engine) -> None:
    """Most of them are requested with the text."""
    engine, request = open_engine(settings), last_of_many(local)
    for each, lists in ((request, [FEW]), (ScoreRequest("whole", request.token_ids), [])):
        served.lists.clear()
        before = served.requests
        theirs = log_probs(engine, each)
        assert (served.lists, served.requests - before) == (lists, 1)
        assert float((theirs - log_probs(local, each)).abs().max()) < NATS
    assert engine.identity.settings["prompts"] == "token ids, in lists"


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
    engine, request = open_engine(settings), last_of_many(local)
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
    turned = answer(choices=answer()["choices"][::-1])
    assert [each.choice.prompt_token_ids for each in completions_of(turned, PROMPTS)] == [[1, 2, 3], [4, 5]]
    with pytest.raises(MalformedError, match=words):
        completions_of(answer(**change(answer())), PROMPTS)
