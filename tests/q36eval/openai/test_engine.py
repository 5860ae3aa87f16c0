"""A served model is measured as the same model in this process, or says what it cannot show."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from q36eval.engines import (
    Engine,
    EngineSettings,
    ScoreRequest,
    identity_of,
    open_engine,
    repeats_itself,
)
from q36eval.engines.base import GenerationRequest
from q36eval.engines.openai.client import Address, Client, TooLongError, expected_bytes
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.engines.openai.flavour import server_of
from q36eval.errors import EngineError, UsageError
from tests.q36eval.openai.server import NATS, SANDBOX, Handler, Served, serving
from tests.q36eval.scoring import log_probs_of, states_of
from tests.raising import raises

TEXTS = [f"Obchod {n}: cena {n * 130} Kč, sleva {n} %. Kolik zaplatím?" for n in range(6)]


def ids_of(engine: Engine) -> list[tuple[int, ...]]:
    return [tuple(engine.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]


@pytest.mark.long
def test_scores_and_answers_are_those_of_the_model_itself(engine: Engine, local: Engine) -> None:
    assert engine.scores == "states"
    requests = [ScoreRequest(f"all {n}", ids) for n, ids in enumerate(ids_of(local))]
    requests += [ScoreRequest(f"last {n}", ids, first=len(ids) - 1) for n, ids in enumerate(ids_of(local))]
    own, theirs = log_probs_of(local, requests), log_probs_of(engine, requests)
    for key, expected in own.items():
        assert float((theirs[key] - expected).abs().max()) < NATS, key
    # answers one by one, since a batch of another size moves near ties
    requests = [
        GenerationRequest(str(n), ids, 12, stop=("Kč",) if n % 2 else ()) for n, ids in enumerate(ids_of(local))
    ]
    for request in requests:
        (own,), (theirs,) = local.generate([request]), engine.generate([request])
        assert (theirs.text, theirs.token_ids, theirs.finish_reason, theirs.end_id) == (
            own.text, own.token_ids, own.finish_reason, own.end_id
        )  # fmt: skip
    # a sampled answer follows from its seed and key
    ids = ids_of(local)[1]
    requests = [GenerationRequest(key, ids, 8, temperature=1.5, seed=seed) for key in "ab" for seed in (1, 2, 3)]
    first = {(r.request.key, r.request.seed): r.token_ids for r in engine.generate(requests)}
    again = {(r.request.key, r.request.seed): r.token_ids for r in engine.generate(requests)}
    assert first == again
    assert len(set(first.values())) > 1


@pytest.mark.long
def test_a_text_that_does_not_fit_is_an_error_that_asking_again_does_not_help(engine: Engine, served: Served) -> None:
    requests = served.requests
    (scored,) = engine.score([ScoreRequest("x", tuple(range(served.context)))])
    (generated,) = engine.generate([GenerationRequest("x", (1,) * 4000, 200)])
    assert (scored.permanent, generated.permanent, generated.finish_reason) == (True, True, "error")
    assert "4096 tokens and 1 more do not fit the server's context of 4096" in (scored.error or "")
    assert served.requests == requests


@pytest.mark.long
def test_the_identity_is_that_of_the_branch_and_of_what_serves_it(
    engine: Engine, settings: EngineSettings, address: str
) -> None:
    identity = engine.identity
    assert identity == identity_of(settings)
    assert (identity.engine, identity.engine_version) == ("openai", "vllm 0.26.0")
    assert identity.checkpoint_sha256 == identity_of(SANDBOX).checkpoint_sha256
    assert identity.settings["log_probabilities"] == "all"
    assert address not in identity.model_dump_json()
    assert not repeats_itself(identity)
    assert not engine.deterministic


def test_of_the_likeliest_tokens_no_logits_are_made_up(settings: EngineSettings, served: Served, local: Engine) -> None:
    served.max_logprobs = 20
    engine = open_engine(settings)
    assert engine.scores == "likeliest"
    assert engine.identity.settings["log_probabilities"] == "top 20"
    request = ScoreRequest("x", ids_of(local)[2])
    states, expected = states_of(engine, [request])["x"], log_probs_of(local, [request])["x"]
    with raises(EngineError, "server-log-probs-missing"):
        engine.logits(states)
    ids, values = engine.likeliest(states)
    for row, label in enumerate(request.token_ids[1:]):
        known = ids[row] >= 0
        assert int(known.sum()) in (20, 21)
        assert label in ids[row].tolist()
        assert set(expected[row].topk(20).indices.tolist()) <= set(ids[row].tolist())
        assert torch.allclose(values[row][known], expected[row][ids[row][known]], atol=NATS)
        assert bool(values[row][~known].isnan().all())
    # an unlikely last token too, whose position alone is scored
    unlikely = int(expected[-1].argmin())
    last = ScoreRequest("y", (*request.token_ids[:-1], unlikely), len(request.token_ids) - 1)
    ids, values = engine.likeliest(states_of(engine, [last])["y"])
    assert float(values[0][ids[0] == unlikely]) == pytest.approx(float(expected[-1, unlikely]), abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["llama.cpp", "sglang", "someone's"])
def test_a_server_without_log_probabilities_answers_and_scores_nothing(
    settings: EngineSettings, served: Served, local: Engine, shape: str
) -> None:
    """llama.cpp ignores what it does not know of a request, and answers 200."""
    served.shape = shape
    engine = open_engine(settings)
    assert engine.scores == "nothing"
    (scored,) = engine.score([ScoreRequest("x", ids_of(local)[0])])
    assert (scored.hidden_states, scored.permanent) == (None, True)
    request = GenerationRequest("x", ids_of(local)[0], 12)
    (own,), (theirs,) = local.generate([request]), engine.generate([request])
    assert (theirs.text, theirs.finish_reason) == (own.text, own.finish_reason)


@pytest.mark.parametrize("shape", ["vllm", "someone's"])  # the latter has no page that gives token ids
def test_another_tokenizer_is_refused_by_the_text_that_shows_it(
    settings: EngineSettings, served: Served, tmp_path: Path, shape: str
) -> None:
    served.shape = shape
    folder = tmp_path / "branch"
    shutil.copytree(SANDBOX, folder)
    rules = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    rules["model"]["merges"] = rules["model"]["merges"][:-300]
    (folder / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    with raises(UsageError, "server-tokenizer-differs"):
        open_engine(replace(settings, folder=folder))


@pytest.mark.long
def test_what_is_served_is_named_and_must_be_there(settings: EngineSettings, served: Served) -> None:
    assert open_engine(replace(settings, served_model="sandbox")).identity.settings["served_model"] == "sandbox"
    with raises(UsageError, "served-model-unknown", "'other'", "sandbox"):
        open_engine(replace(settings, served_model="other"))


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("", "server-address-missing"),
        ("ftp://host/v1", "server-address-invalid"),
        ("http://host/v1?key=s3cret", "server-address-invalid"),
        ("http://user:s3cret@host/v1", "server-address-invalid"),
        ("http://host:port/v1", "server-address-invalid"),
        ("http://gpu01..example:8000/v1", "server-address-invalid"),
        ("http://gpu\u200b01:8000/v1", "server-address-invalid"),
    ],
)
def test_an_address_is_checked_and_what_is_secret_in_it_not_repeated(
    address: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with raises(UsageError, code) as caught:
        Address.named(address)
    assert "s3cret" not in str(caught.value)


def test_address_and_key_come_from_the_environment_and_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://host:1/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    address = Address.named(None)
    assert (address.base, address.root, address.key) == ("http://host:1/v1", "http://host:1", "s3cret")
    assert "s3cret" not in repr(address)


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


# -- no more of an answer is read than what was requested can have, and a page kept from us is one that there is not

BASE = "http://127.0.0.1:1/v1"
BODY = {"model": "sandbox", "prompt": [1, 2, 3], "max_tokens": 1}
PIECE = b"x" * 2**20


class Endless(httpx.SyncByteStream):
    """An answer without an end; counts what was taken of it."""

    def __init__(self) -> None:
        self.pieces = 0

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
        assert (engine.scores, engine.identity.engine_version) == ("states", "vllm unknown")
        (answer,) = engine.generate([GenerationRequest("x", (1, 2, 3), 4)])
        assert answer.error is None
        with closing(Endpoint.load(settings)) as endpoint:
            assert endpoint.cache_state() is None
            endpoint.confirm()
