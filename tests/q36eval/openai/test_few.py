"""Of texts of which few tokens are read at each place, few log-probabilities are requested; what is read is exact."""

import math
from typing import Any

import pytest
import torch

from q36eval.canaries.margins import CHOICES, DecisiveToken, taught
from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.openai.answers import packed_row, spread_rows
from tests.q36eval.openai import server
from tests.q36eval.openai.server import NATS, Served, log_probs

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
def test_margins_and_choices_are_those_of_whole_rows(settings: EngineSettings, local: Engine) -> None:
    answer = request_of(local).token_ids[4:]
    named = local.tokenizer.encode("9", add_special_tokens=False)[0]
    tokens = [DecisiveToken("any", at, token) for at, token in enumerate(answer) if at != len(answer) - 1]
    tokens += [DecisiveToken("price", len(answer) - 1, answer[-1], (named, named + 1))]
    engine = open_engine(settings)
    sides = []
    for each in (local, engine):
        (scored,) = each.score([request_of(local, likeliest=CHOICES, whole=(len(answer) - 1,))])
        assert scored.hidden_states is not None
        sides.append(taught(each.logits, scored.hidden_states, answer, tokens))
    own, theirs = sides
    assert theirs.best_wrong == own.best_wrong
    assert theirs.margins == pytest.approx(own.margins, abs=2 * NATS)
    assert [[token for token, _ in row] for row in theirs.choices] == [[t for t, _ in row] for row in own.choices]


@pytest.mark.long
def test_few_of_many_are_all_that_is_sent(settings: EngineSettings, served: Served, local: Engine) -> None:
    engine, sizes = open_engine(settings), []
    completion = server.completion

    def measured(given: Served, body: Any) -> bytes:
        sizes.append(len(written := completion(given, body)))
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "completion", measured)
        for reads in ({}, {"likeliest": 1}):
            list(engine.score([request_of(local, **reads)]))
    whole, few = sizes
    assert few < whole / 20


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


def test_a_row_that_is_all_there_has_no_rest() -> None:
    (row,) = spread_rows(packed_row([0, 1], [0.0, -math.inf], 4, 2)[None], 4)
    assert row.tolist() == [0.0, -math.inf, -math.inf, -math.inf]
