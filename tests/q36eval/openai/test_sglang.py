"""SGLang's own scoring page, in the shapes of its API reference, written by us around a real model.

SGLang was never run here: these tests show that the client reads those shapes and believes no others, not that SGLang
gives them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from typing_extensions import override

from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.openai.client import MalformedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.engines.openai.sglang import likeliest_rows
from tests.q36eval.openai.server import SANDBOX, Handler, Served, opened, serving
from tests.q36eval.scoring import log_probs_of, states_of

BRANCH = SANDBOX.parent / "fp8-head"
TEXT = "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. Obchod Oves: cena 1 310 Kč, sleva 18 %. Kde je levněji?"


class SGLang(Handler):
    """Prompt log-probabilities under `/generate` alone. `fault` is what is wrong with them."""

    fault = ""
    asked: list[Mapping[str, Any]]

    @override
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
def settings(branch: Engine, handler: type[SGLang]) -> Iterator[EngineSettings]:
    with serving(Served(branch, shape="sglang"), handles=handler) as url:
        yield EngineSettings(BRANCH, kind="openai", base_url=url)


@pytest.mark.long
def test_the_likeliest_tokens_and_the_texts_own_are_had_of_every_position(
    settings: EngineSettings, branch: Engine
) -> None:
    engine = open_engine(settings)
    assert engine.scores == "likeliest"
    assert engine.identity.settings["log_probabilities"] == "top 128"
    request = ScoreRequest("x", tuple(branch.tokenizer.encode(TEXT, add_special_tokens=False)), 5)
    ids, log_probs = engine.likeliest(states_of(engine, [request])["x"])
    own = log_probs_of(branch, [request])["x"]
    listed = ids >= 0
    assert (listed.sum(-1) >= 128).all()
    assert torch.equal(own.gather(-1, ids.clamp(min=0))[listed], log_probs[listed])
    labels = torch.tensor(request.token_ids[5:]).unsqueeze(1)
    assert (ids == labels).any(-1).all()
    endpoint = Endpoint.load(settings)
    assert not endpoint.gives_log_probs, "its completions page gives none"
    endpoint.close()


@pytest.mark.long
@pytest.mark.parametrize("handler", ["shifted"], indirect=True)
def test_what_does_not_fit_is_believed_nothing_of(settings: EngineSettings) -> None:
    engine = open_engine(settings)
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
