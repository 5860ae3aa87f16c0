"""Deliveries to a real receiver: signed, repeated until taken under one id, and no secret in what is logged."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from q36eval.errors import UsageError
from q36eval.history import History, RunState
from q36eval.watch import webhooks
from q36eval.watch.incidents import Event, EventKind
from q36eval.watch.store import FILE, Store
from q36eval.watch.webhooks import SECRET, SLACK, Courier, Receiver, payload, post, receivers
from tests.q36eval.openai.server import SANDBOX, listening
from tests.q36eval.watch.conftest import Place
from tests.raising import raises

HUSH = "whsec_aHVzaCwgdGhpcyBpcyBhIHNlY3JldCBvZiB0ZXN0cw=="
EVENT = Event(
    number=3, kind=EventKind.OPENED, at=datetime(2026, 11, 20, tzinfo=UTC), reason="lost 6 of 6", incident="i"
)


class Taking(BaseHTTPRequestHandler):
    got: list[tuple[str, dict[str, str], bytes]]
    answers: list[int]

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, dict(self.headers), content))
        while self.answers and self.answers[0] == 103:  # hints until the test is over
            self.send_response_only(103)
            self.end_headers()
            time.sleep(0.01)
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def taking() -> Iterator[tuple[str, Any]]:
    handler: Any = type("Handler", (Taking,), {"got": [], "answers": []})
    with listening(handler) as address:
        yield f"{address}/hook/T0KEN", handler


def posted(store: Store, everyone: list[Receiver]) -> dict[str, Any]:
    said = payload("prod", "bf16", "seed", "run-1", EVENT)
    with store.transaction():
        post(store, everyone, said, now=1_000.0)
    return said


def test_a_delivery_is_repeated_under_one_id_until_it_is_taken(tmp_path: Path, taking: tuple[str, Any]) -> None:
    url, handler = taking
    handler.answers += [500, 302]
    everyone, log = [Receiver(url, "json")], list[str]()
    said = posted(Store(tmp_path), everyone)
    now, taken = 1_000.0, []
    for _ in range(3):
        courier = Courier(Store(tmp_path), everyone, log.append, secret=HUSH)  # a restart in between loses nothing
        taken.append(courier.deliver(now))
        assert courier.deliver(now) == 0  # not before its pause is over
        now += 20.0
    assert taken == [0, 0, 1]
    assert [path for path, _, _ in handler.got] == ["/hook/T0KEN"] * 3  # no redirect is followed
    assert {headers["webhook-id"] for _, headers, _ in handler.got} == {said["id"]}
    for _, headers, content in handler.got:
        assert Webhook(HUSH).verify(content, headers) == said
        with pytest.raises(WebhookVerificationError):
            Webhook("b3RoZXI=").verify(content, headers)
    assert Store(tmp_path).pending() == 0
    assert not [line for line in log if "T0KEN" in line or HUSH in line]


def test_the_same_event_has_the_same_id_and_is_kept_once(tmp_path: Path) -> None:
    store, everyone = Store(tmp_path), [Receiver("http://127.0.0.1:9/x", "json")]
    assert posted(store, everyone)["id"] == posted(store, everyone)["id"]
    assert store.pending() == 1
    other = payload("prod", "bf16", "begun anew", "run-1", EVENT)
    assert other["id"] != posted(store, everyone)["id"]


def test_slack_reads_a_text_and_who_never_takes_it_is_given_up(tmp_path: Path, taking: tuple[str, Any]) -> None:
    url, handler = taking
    store, gone = Store(tmp_path), Receiver("http://127.0.0.1:9/x", "json")
    everyone = [Receiver(url, "slack"), gone]
    posted(store, everyone)
    courier = Courier(store, everyone, lambda _: None)
    assert courier.deliver(1_000.0) == 1
    said = json.loads(handler.got[0][2])
    assert said["text"] == "prod: incident opened i: lost 6 of 6."
    assert store.pending() == 1
    courier.deliver(1_000.0 + 8 * 86_400.0)
    assert (store.pending(), store.counts()["webhook", "given_up"]) == (0, 1)


def test_a_receiver_without_end_is_left_after_a_deadline(
    tmp_path: Path, taking: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = taking
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.3)
    handler.answers += [103]
    log = list[str]()
    posted(Store(tmp_path), everyone := [Receiver(url, "json")])
    assert Courier(Store(tmp_path), everyone, log.append).deliver(1_000.0) == 0
    assert "TimeoutError" in log[0]
    handler.answers.clear()


@pytest.mark.parametrize("secret", ["hushx", "hushž", "whsec_QQ==", "whsec_aHVzaCwgdGhpcyBpcyBhIHNlY3JldA-_"])
def test_a_secret_that_is_short_or_not_base64_is_refused(secret: str, tmp_path: Path) -> None:
    with raises(UsageError, "webhook-secret-invalid") as told:
        Courier(Store(tmp_path), [], print, secret=secret)
    assert secret not in str(told.value)


def test_addresses_come_from_a_file_and_environment_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLACK, "https://hooks.example.org/a https://hooks.example.org/a")
    monkeypatch.delenv(SECRET, raising=False)
    everyone = receivers(["https://hooks.example.org/b"], [])
    assert [(one.kind, one.host) for one in everyone] == [("json", "hooks.example.org"), ("slack", "hooks.example.org")]
    with raises(UsageError, "webhook-invalid") as told:
        receivers(["file:///etc/T0KEN"], [])
    assert "T0KEN" not in str(told.value)


# -- the command


DEPLOYMENT = {
    "name": "prod",
    "branch": str(SANDBOX),
    "canaries": ["enum-select", "enum-select-must-pass"],
    "amounts": {"required": 2, "suspects": 0, "families": 1, "kl": 2, "differentials": 0},
    "alarm": {"calibration_rounds": 3, "anchors": 2},
    "every": "10s",
    "back_off": {"latency_floor_s": 60},
}


def command(state: Path, place: Place, *more: str) -> list[str]:
    file = state / "prod.yaml"
    state.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(DEPLOYMENT | {"base_url": place.address}))
    return [sys.executable, "-m", "q36eval", "--state", str(state), "watch", "--deployment", str(file), *more]


@contextmanager
def running(arguments: list[str]) -> Iterator["subprocess.Popen[str]"]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(arguments, env=dict(os.environ), **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_sigterm_ends_it_while_the_server_is_silent_and_the_round_stays_interrupted(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, hang = threading.Event(), threading.Event()

    def silent(*_: Any) -> Any:
        asked.set()
        hang.wait()
        raise ConnectionAbortedError("the client is gone")  # an answer would be looked at by a thread of the server

    monkeypatch.setattr(place.served, "generate", silent)
    try:
        with running(command(tmp_path, place)) as process:
            assert asked.wait(120)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)  # an answer would be waited for twice as long
            assert (process.returncode, "stopped by SIGTERM" in said) == (0, True), said
    finally:
        hang.set()
    with sqlite3.connect(tmp_path / "watch" / "prod" / FILE) as sqlite:
        charged = sqlite.execute("SELECT SUM(requests) FROM days").fetchone()[0]
    assert charged >= place.seen["requests"] > 0
    monkeypatch.undo()
    subprocess.run([*command(tmp_path, place), "--once"], capture_output=True, timeout=120, check=False)
    runs = History.open(tmp_path / "history.sqlite").list_runs()
    assert sorted(run.state for run in runs) == [RunState.FINISHED, RunState.INTERRUPTED]


@pytest.mark.long
def test_kill_9_at_any_moment_loses_no_charge_and_doubles_no_round(place: Place, tmp_path: Path) -> None:
    rng = random.Random(24)
    arguments = command(tmp_path, place)
    for _ in range(8):
        with running(arguments) as process:
            time.sleep(rng.uniform(2.0, 9.0))
            process.kill()
    ended = subprocess.run([*arguments, "--once", "--json"], capture_output=True, text=True, timeout=120, check=False)
    newest = json.loads(ended.stdout)
    assert newest["run"] is not None, ended.stderr
    with sqlite3.connect(tmp_path / "watch" / "prod" / FILE) as sqlite:
        charged, tokens = sqlite.execute("SELECT SUM(requests), SUM(tokens) FROM days").fetchone()
        state = json.loads(sqlite.execute("SELECT value FROM kept WHERE name = 'state'").fetchone()[0])
        waiting = sqlite.execute("SELECT COUNT(*) FROM spool").fetchone()[0]
        begun = int(sqlite.execute("SELECT value FROM kept WHERE name = 'number'").fetchone()[0])
    assert place.seen["requests"] <= charged
    assert place.seen["tokens"] <= tokens
    runs = History.open(tmp_path / "history.sqlite").list_runs()
    assert waiting == 0
    assert len(runs) == begun  # each round that was begun is one run, whatever became of it
    assert sum(run.state is RunState.FINISHED for run in runs) == state["rounds"]
    assert {run.state for run in runs} <= {RunState.FINISHED, RunState.INTERRUPTED}
