"""Every fault between client and server: no wrong answer is counted, nothing is lost or doubled, the rest is exit 4."""

import gzip
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from typing_extensions import override

from q36eval.engines import Engine, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.base import Generated, GenerationRequest, Scored
from q36eval.engines.openai.client import SAID_CHARACTERS, Address, Client, Limits, RefusedError, _events
from q36eval.engines.openai.concurrency import in_flight
from q36eval.engines.openai.engine import OpenAIEngine
from q36eval.errors import EngineError, ExitCode
from q36eval.redaction import redacted
from tests.q36eval.openai.server import SANDBOX, Handler, Served, serving
from tests.raising import raises

AT_ONCE = Limits(first_pause=0.0, longest_pause=0.0, spare_requests=10**6)
DRIPPING = Limits(first_pause=0.0, longest_pause=0.0, spare_requests=10**6, answer=3.0, attempts=100)
"""An answer that is not whole in three seconds is asked for anew, and a machine under load may be slower than that."""
OTHER_MODEL = "another model"
BODY = {"model": "sandbox", "prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0.0}


def _choice(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda answer: change(answer["choices"][0])


def _shifted(choice: dict[str, Any]) -> None:
    """As by a server whose echo is off by one: each position has the log-probabilities of the one before it."""
    if choice.get("prompt_logprobs"):
        given = choice["prompt_logprobs"]
        choice["prompt_logprobs"] = [None, given[1], *given[1:-1]]
    else:
        choice["token_ids"] = choice["token_ids"][1:]


def _fewer(choice: dict[str, Any]) -> None:
    if choice.get("prompt_logprobs"):
        choice["prompt_logprobs"] = choice["prompt_logprobs"][:-1]
    else:
        choice["token_ids"] = choice["token_ids"][:-1]


def _thinner(choice: dict[str, Any]) -> None:
    """One token of a position is missing."""
    if choice.get("prompt_logprobs"):
        choice["prompt_logprobs"][-1].popitem()
    else:
        choice["token_ids"] = [10**6, *choice["token_ids"][1:]]


def _heavier(added: float) -> Callable[[dict[str, Any]], object]:
    """Log-probabilities that are none."""

    def change(choice: dict[str, Any]) -> None:
        if choice.get("prompt_logprobs"):
            for entry in choice["prompt_logprobs"][-1].values():
                entry["logprob"] += added
        else:
            choice["finish_reason"] = "abort"

    return _choice(change)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "wrong prompt count": lambda answer: answer["usage"].update(prompt_tokens=answer["usage"]["prompt_tokens"] + 1),
    "wrong answer count": lambda answer: answer["usage"].update(completion_tokens=10**6),
    "no choice": lambda answer: answer["choices"].clear(),
    "two choices": lambda answer: answer["choices"].append(answer["choices"][0]),
    "null text": _choice(lambda choice: choice.update(text=None)),
    "nothing that was requested": _choice(
        lambda choice: choice.update(prompt_logprobs=None, logprobs=None, token_ids=None)
    ),
    "shifted": _choice(_shifted),
    "a position missing": _choice(_fewer),
    "a token missing": _choice(_thinner),
    "no distribution": _heavier(0.5),
    "not numbers": _heavier(math.nan),
    "huge": _heavier(1e30),
    "another model": lambda answer: answer.update(model="gpt-oss"),
}
"""Faults of what is said, as changes of the answer."""

WIRE = (
    "dropped",
    "cut",
    "truncated",
    "dripping",
    "doubled",
    "no JSON",
    "429",
    "500",
    "503",
    "answer to another prompt",
    "compressed",
    "hints without end",
)
"""Faults of how it is said."""


@dataclass
class Trouble:
    """`fault` is what happens to answers, `times` how often each request meets it; then it is answered unharmed."""

    fault: str | None = None
    times: int = 1
    retry_after: str = "0"
    met: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    foreign: bytes = b"{}"
    """An answer to a prompt of nobody here."""
    lock: Any = field(default_factory=threading.Lock)

    def fault_of(self, path: str, body: bytes) -> str | None:
        """The fault that this request meets now; only completions meet any."""
        with self.lock:
            if self.fault is None or path != "/v1/completions" or self.met[self.fault, body] >= self.times:
                return None
            self.met[self.fault, body] += 1
            return self.fault


class Faulty(Handler):
    """Does to answers what networks and servers do."""

    trouble: Trouble
    fault: str | None = None
    """Of the request that is answered."""

    @override
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.fault = self.trouble.fault_of(self.path, body)
        if self.fault == "dropped":
            self.close_connection = True
        elif self.fault in ("401", "403"):
            self._send(int(self.fault), {"error": f"no such key: {self.headers['Authorization']}"})
        elif self.fault in ("429", "500", "503"):
            self._send(int(self.fault), {"error": {"message": "try later"}})
        else:
            self.answer(json.loads(body))

    def _send(self, status: int, content: Mapping[str, Any] | bytes) -> None:
        fault, self.fault = self.fault, None
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        if fault in CHANGES:
            said = json.loads(data)
            CHANGES[fault](said)
            data = json.dumps(said).encode()
        elif fault == "truncated":
            data = data[: len(data) // 2]
        elif fault == "doubled":
            data = data + data
        elif fault == "no JSON":
            data = b"<html>upstream timed out</html>"
        elif fault == "answer to another prompt":
            data = self.trouble.foreign
        elif fault == "compressed":
            data = gzip.compress(gzip.compress(data))
        elif fault == "hints without end":
            self._drip(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)
        self.send_response(status)
        if fault == "compressed":
            self.send_header("Content-Encoding", "gzip, gzip")
        self.send_header("Content-Length", str(len(data)))
        if status >= 400:
            self.send_header("Retry-After", self.trouble.retry_after)
        self.end_headers()
        self.close_connection = fault in ("cut", "dripping")
        if fault == "dripping":
            self._drip(data)
        else:
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)

    def _drip(self, data: bytes) -> None:
        """A byte now and then, for as long as the client stays."""
        waiting = threading.Event()
        try:
            for byte in data:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if waiting.wait(0.05):
                    return
        except OSError:
            return


@dataclass
class Through:
    """A served model with faults, and what it says without any."""

    engine: Engine
    trouble: Trouble
    address: str
    served: Served
    scores: list[ScoreRequest]
    questions: list[GenerationRequest]
    scored: dict[str, Scored]
    answered: dict[str, Generated]


@pytest.fixture(scope="module")
def through(local: Engine) -> Iterator[Through]:
    served = Served(local)
    texts = [f"Obchod {n}: cena {n * 130} Kč" for n in range(4)]
    ids = [tuple(local.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    scores = [ScoreRequest(f"s{n}", one) for n, one in enumerate(ids)]
    questions = [GenerationRequest(f"g{n}", one, 6) for n, one in enumerate(ids)]
    trouble = Trouble()
    handler = type("Handler", (Faulty,), {"trouble": trouble})
    with pytest.MonkeyPatch.context() as patch, serving(served, handles=handler) as address:
        patch.setattr(OpenAIEngine, "limits", AT_ONCE)
        engine = open_engine(EngineSettings(SANDBOX, kind="openai", base_url=address, batch_rows=2))
        foreign = {**BODY, "prompt": ids[-1][::-1], "max_tokens": 6, "return_token_ids": True, "prompt_logprobs": -1}
        trouble.foreign = httpx.post(f"{address}/completions", json=foreign, timeout=None).content
        scored = {each.request.key: each for each in engine.score(scores)}
        answered = {each.request.key: each for each in engine.generate(questions)}
        assert not [each.error for each in (*scored.values(), *answered.values()) if each.error]
        yield Through(engine, trouble, address, served, scores, questions, scored, answered)


@pytest.fixture
def fresh(through: Through, monkeypatch: pytest.MonkeyPatch) -> Through:
    """Without a fault, and without faults met."""
    through.trouble.fault, through.trouble.times, through.trouble.retry_after = None, 1, "0"
    through.trouble.met.clear()
    return through


def asked(through: Through) -> tuple[list[Scored], list[Generated]]:
    return list(through.engine.score(through.scores)), list(through.engine.generate(through.questions))


def content_of(result: Scored | Generated) -> object:
    """What is compared of a result, which may not be an error."""
    assert result.error is None
    if isinstance(result, Generated):
        return result.text, result.token_ids
    return result.hidden_states.tolist()


@pytest.mark.long
@pytest.mark.parametrize("fault", [*WIRE, *(name for name in CHANGES if name != OTHER_MODEL)])
def test_a_fault_that_passes_changes_nothing(fresh: Through, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault in ("dripping", "hints without end"):
        monkeypatch.setattr(fresh.engine._client, "_limits", DRIPPING)  # type: ignore[attr-defined]
    fresh.trouble.fault = fault
    scored, answered = asked(fresh)
    assert sum(fresh.trouble.met.values()) == len(fresh.scores) + len(fresh.questions), "each met it once"
    for results, known in ((scored, fresh.scored), (answered, fresh.answered)):
        assert sorted(each.request.key for each in results) == sorted(known)
        for each in results:
            assert content_of(each) == content_of(known[each.request.key]), each.request.key


@pytest.mark.long
@pytest.mark.parametrize("fault", ["dropped", "truncated", "500", "shifted", "null text", "answer to another prompt"])
def test_a_fault_that_stays_leaves_errors_and_no_answers(fresh: Through, fault: str) -> None:
    fresh.trouble.fault, fresh.trouble.times = fault, 10**6
    for each in (result for results in asked(fresh) for result in results):
        assert "6 attempts" in each.error
        assert not each.permanent
        assert (each.hidden_states if isinstance(each, Scored) else each.text or None) is None


@pytest.mark.long
def test_answers_of_another_model_end_the_measurement(fresh: Through) -> None:
    fresh.trouble.fault = OTHER_MODEL
    with raises(EngineError, "server-changed", "model", "'gpt-oss'", "'sandbox'") as caught:
        list(fresh.engine.score(fresh.scores))
    assert caught.value.exit_code is ExitCode.NOT_MEASURED


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"), [("started", 1.0), ("version", "0.27.0"), ("context", 2048), ("name", "other")]
)
def test_a_server_that_was_started_anew_is_noticed_before_its_answers_are_taken(
    fresh: Through, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh.served, name, value)
    taken = []
    with raises(EngineError, "server-changed"):
        taken += list(fresh.engine.score(fresh.scores))
    assert taken == []


# -- the client alone


def client_of(through: Through, limits: Limits, key: str | None = None) -> tuple[Client, list[float]]:
    """A client that waits for nothing, and the seconds that it would have waited."""
    waits = list[float]()
    return Client(Address(through.address, key), limits, waits.append), waits


def asked_once(client: Client) -> Any:
    return client.post(f"{client.address.base}/completions", BODY, lambda content: content["model"])


@pytest.mark.parametrize(
    ("fault", "retry_after", "limits", "wanted"),
    [
        ("429", "7", Limits(attempts=4), 7.0),
        ("503", "Sun, 01 Jan 2090 00:00:00 GMT", Limits(attempts=2, longest_wait=20.0, first_pause=0.0), 20.0),
        ("500", "soon", Limits(attempts=41, longest_pause=4.0), 0.0),
        ("503", f"Mon, 01 Jan {10**20} 00:00:00 GMT", Limits(attempts=2, first_pause=0.0), 0.0),
    ],
)
def test_pauses_are_what_the_server_wants_and_drawn_ones_that_grow_to_a_limit(
    fresh: Through, fault: str, retry_after: str, limits: Limits, wanted: float
) -> None:
    fresh.trouble.fault, fresh.trouble.times, fresh.trouble.retry_after = fault, limits.attempts - 1, retry_after
    client, waits = client_of(fresh, limits)
    assert asked_once(client) == "sandbox"
    drawn = [seconds - wanted for seconds in waits]
    most = [min(limits.longest_pause, limits.first_pause * 2.0**attempt) for attempt in range(limits.attempts - 1)]
    assert all(0.0 <= seconds <= bound for seconds, bound in zip(drawn, most, strict=True))
    if len(drawn) == 40:  # of 37 draws from [0, 4]
        assert len(set(drawn)) == 40
        assert max(drawn) > 2.0


def test_nobody_waits_for_ever_for_a_server_that_is_gone() -> None:
    waits = list[float]()
    client = Client(Address("http://127.0.0.1:9/v1"), Limits(attempts=50, give_up=0.0), waits.append)
    with raises(EngineError, "server-given-up", "http://127.0.0.1:9/v1"):
        asked_once(client)
    assert len(waits) == 1


@pytest.mark.parametrize("status", ["401", "403"])
def test_a_refused_key_ends_it_and_is_not_repeated(fresh: Through, status: str) -> None:
    fresh.trouble.fault, fresh.trouble.times = status, 10**6
    client, waits = client_of(fresh, Limits(), "s3cret-key")
    with raises(EngineError, "server-refused") as caught:
        asked_once(client)
    assert "s3cret" not in str(caught.value)
    assert "***" in str(caught.value)
    assert waits == []


def test_a_key_is_hidden_before_what_a_server_says_is_cut() -> None:
    """Cut in two it would not be found any more, and half of it would be printed."""
    client = Client(Address("http://127.0.0.1:1/v1", "s3cret-key"))
    said = "x" * (SAID_CHARACTERS - 5) + "s3cret-key"
    client._http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(400, text=said)))
    with pytest.raises(RefusedError) as caught:
        client.get("http://127.0.0.1:1/v1/models", lambda content: content)
    assert "s3c" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    ["s3cret-key!", "7333637265742d6b657921", "czNjcmV0LWtleSE", "s3cret-key%21", "s3cret-k…", "http://u:s3cret@h/"],
)
def test_a_secret_is_hidden_however_it_is_written(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret-key!")
    assert "***" in redacted(f"model {said} is 0.7333637265742")
    assert said not in redacted(f"model {said} is 0.7333637265742")
    assert "0.7333637265742" in redacted(f"model {said} is 0.7333637265742")
    monkeypatch.setenv("Q36EVAL_WATCH_WEBHOOKS", "https://hooks.example.org/T0KEN")
    assert redacted("see https://x.org, hush", "hush") == "see https://x.org, ***"


def test_only_line_breaks_end_an_event() -> None:
    """JSON may hold other marks as they are, at which Python would break a line."""
    text = 'data: {"text": "a\u2028b\x85c"}\r\n\r\ndata: [DONE]\n\n'
    assert _events(text) == [{"text": "a\u2028b\x85c"}]


def test_what_a_server_refuses_is_not_asked_again_and_requests_have_a_budget(fresh: Through) -> None:
    client, waits = client_of(fresh, Limits())
    with pytest.raises(RefusedError, match="model `other` does not exist"):
        client.post(f"{client.address.base}/completions", {**BODY, "model": "other"}, lambda content: content)
    assert waits == []
    fresh.trouble.fault, fresh.trouble.times = "429", 10**6
    client, waits = client_of(fresh, Limits(attempts=10**6, spare_requests=5))
    with raises(EngineError, "server-given-up", "took 6 requests for 0 answers"):
        asked_once(client)
    assert len(waits) == 5


def test_a_connection_that_was_ended_between_two_requests_is_no_fault_of_the_server() -> None:
    """llama-server ends each after a hundred; one that ends before it ever answered, or in the middle, is a fault."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script = [(1, 0.0), (1, 0.0), (0, 0.0), (1, 1.5), (1, 0.0)]
        """Of each connection how many requests are answered, and after how long the next one meets its end."""

        def serve() -> None:
            for answers, wait in script:
                connection = listening.accept()[0]
                for _ in range(answers):
                    connection.recv(4096)
                    connection.sendall(answer)
                connection.recv(4096)
                time.sleep(wait)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = Client(Address(f"http://127.0.0.1:{listening.getsockname()[1]}/v1"), Limits(), lambda _: None)
        seen = []
        for _ in range(4):
            client.get(f"{client.address.base}/models", lambda content: content)
            seen.append(client.unsound)
        client.close()
        thread.join()
    # the second went over the ended connection; so did the third, and its second attempt over one that never answered
    assert seen == [0, 0, 1, 2]
    assert client.unsound_last.startswith("RemoteProtocol")


# -- many under way


@pytest.mark.long
def test_memory_stays_what_it_was_over_a_hundred_thousand_requests() -> None:
    begun = taken = most = 0

    def requests() -> Iterator[int]:
        nonlocal begun, most
        for number in range(100_000):
            begun = number
            most = max(most, number - taken)
            yield number

    results = set()
    for result in in_flight(lambda number: number * 2, requests(), 8):
        results.add(result)
        taken += 1
    assert taken == 100_000
    assert results == set(range(0, 200_000, 2)), "each request has one result, in whatever order"
    assert most <= 8 * 3 + 1


def test_after_what_a_call_raises_and_who_leaves_early_nothing_more_is_begun() -> None:
    begun = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 5:
            raise EngineError("server-silent", "gone")
        return number

    with raises(EngineError, "server-silent"):
        list(in_flight(call, range(10_000), 4))
    assert len(begun) < 100
    begun: list[int] = []
    results = in_flight(lambda number: begun.append(number), range(10_000), 4)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 4 * 3 + 4
