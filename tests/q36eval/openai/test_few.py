"""Of texts of which few tokens are read at each place, few log-probabilities are requested; what is read is exact.

Few positions of a long text are requested together, as one list of prompts, and each is held to its own prompt.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.openai.answers import Completion, completions_of, next_row, packed_row, spread_rows
from q36eval.engines.openai.client import MalformedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.engines.openai.sglang import likeliest_rows
from tests.q36eval.openai import server
from tests.q36eval.openai.server import NATS, SANDBOX, Handler, Served, log_probs, opened, serving
from tests.q36eval.scoring import log_probs_of, states_of

LONG = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. " * 8
FEW = 4
TEXT = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. Kolik zaplatím? "


def request_of(engine: Engine, **reads: Any) -> ScoreRequest:
    return ScoreRequest("few", tuple(engine.tokenizer.encode(TEXT, add_special_tokens=False)), first=4, **reads)


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


# -- SGLang's own scoring page


BRANCH = SANDBOX.parent / "fp8-head"
SHOPS = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. Obchod Oves: cena 1 310 Kč, sleva 18 %. Kde je levněji?"


class SGLang(Handler):
    """Prompt log-probabilities under `/generate` alone. `fault` is what is wrong with them."""

    fault = ""
    asked: list[Mapping[str, Any]]

    def answer(self, body: Mapping[str, Any]) -> None:
        if self.path != "/generate":
            super().answer(body)
            return
        self.asked.append(body)
        ids, start, top = body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]
        rows, after = self.served.log_probs(ids), self.served.next_log_probs(ids)
        if self.fault == "shifted":
            rows = rows.roll(1, 0)
        places = [(rows[place - 1], ids[place]) for place in range(start + 1, len(ids))]
        meta: dict[str, Any] = {
            "id": "x",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": 0,
            "input_token_logprobs": [[None, ids[start], None], *([float(row[t]), t, None] for row, t in places)],
            "output_token_logprobs": [[float(after.max()), int(after.argmax()), None]],
        }
        if top:
            meta["input_top_logprobs"] = [None, *(likeliest(row, top) for row, _ in places)]
            meta["output_top_logprobs"] = [likeliest(after, top)]
        self._send(200, {"text": "x", "output_ids": [int(after.argmax())], "meta_info": meta})


def likeliest(row: torch.Tensor, count: int) -> list[list[Any]]:
    values, ids = row.topk(count)
    return [[value, token, None] for value, token in zip(values.tolist(), ids.tolist(), strict=True)]


@pytest.fixture(scope="module")
def branch() -> Engine:
    return opened(BRANCH)


@pytest.fixture
def handler(request: pytest.FixtureRequest) -> type[SGLang]:
    return type("Handler", (SGLang,), {"fault": getattr(request, "param", ""), "asked": []})


@pytest.fixture
def sglang_settings(branch: Engine, handler: type[SGLang]) -> Iterator[EngineSettings]:
    with serving(Served(branch, shape="sglang"), handles=handler) as url:
        yield EngineSettings(BRANCH, kind="openai", base_url=url)


@pytest.mark.long
def test_the_likeliest_tokens_and_the_texts_own_are_had_of_every_position(
    sglang_settings: EngineSettings, branch: Engine
) -> None:
    engine = open_engine(sglang_settings)
    assert engine.scores == "likeliest"
    assert engine.identity.settings["log_probabilities"] == "top 128"
    request = ScoreRequest("x", tuple(branch.tokenizer.encode(SHOPS, add_special_tokens=False)), 5)
    ids, log_probs = engine.likeliest(states_of(engine, [request])["x"])
    own = log_probs_of(branch, [request])["x"]
    listed = ids >= 0
    assert (listed.sum(-1) >= 128).all()
    assert torch.equal(own.gather(-1, ids.clamp(min=0))[listed], log_probs[listed])
    labels = torch.tensor(request.token_ids[5:]).unsqueeze(1)
    assert (ids == labels).any(-1).all()
    endpoint = Endpoint.load(sglang_settings)
    assert not endpoint.gives_log_probs, "its completions page gives none"
    endpoint.close()


@pytest.mark.long
@pytest.mark.parametrize("handler", ["shifted"], indirect=True)
def test_what_does_not_fit_is_believed_nothing_of(sglang_settings: EngineSettings) -> None:
    engine = open_engine(sglang_settings)
    assert engine.scores == "nothing"
    assert engine.identity.settings["log_probabilities"] == "nothing"


def told(**meta: Any) -> dict[str, Any]:
    """An answer to the prompt 7, 8, 9 from its second token on, of a vocabulary of 12."""
    good = {
        "prompt_tokens": 3,
        "input_token_logprobs": [[None, 7, None], [-1.0, 8, None], [-2.0, 9, None]],
        "input_top_logprobs": [None, [[-1.0, 8, None]], [[-0.5, 3, None]]],
    }
    return {"meta_info": good | meta}


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"prompt_tokens": 4}, "counts 4 tokens"),
        ({"input_token_logprobs": None}, "has no positions"),
        ({"input_token_logprobs": [[None, 7, None], [-1.0, 8, None]]}, "has 2 positions"),
        ({"input_token_logprobs": [[None, 7, None], [-1.0, 9, None], [-2.0, 8, None]]}, "other tokens than the prompt"),
        ({"input_token_logprobs": [[None, 7, None], [None, 8, None], [-2.0, 9, None]]}, "or none of one"),
        ({"input_top_logprobs": None}, "has no positions"),
        ({"input_top_logprobs": [None, [["x", 8]], [[-0.5, 3]]]}, "is wrong"),
        ({"input_top_logprobs": [None, [[-1.0, True]], [[-0.5, 3]]]}, "is wrong"),
        ({"input_top_logprobs": [None, [8], [[-0.5, 3]]]}, "is wrong"),
        ({"input_top_logprobs": [None, [], [[-0.5, 3]]]}, "has 0 likeliest tokens"),
        ({"input_top_logprobs": [None, None, None]}, "has 0 likeliest tokens"),
        ({"input_top_logprobs": [None, [[-1.0, 8], [-1.0, 8]], [[-0.5, 3]]]}, "token twice"),
        ({"input_top_logprobs": [None, [[-1.0, 8]], [[0.0, 3]]]}, "add up to"),
        ({"input_top_logprobs": [None, [[-3.0, 8]], [[-0.5, 3]]]}, "another probability than it has"),
    ],
)
def test_an_answer_that_does_not_fit_is_none(meta: dict[str, Any], said: str) -> None:
    assert likeliest_rows(told(), (7, 8, 9), 1, 12, 1).tolist()[1] == [3, 9, -0.5, -2.0]
    with pytest.raises(MalformedError, match=said):
        likeliest_rows(told(**meta), (7, 8, 9), 1, 12, 1)
