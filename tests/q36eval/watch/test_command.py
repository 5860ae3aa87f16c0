"""`q36eval watch` as a process: SIGTERM while the server is silent, and kill -9 at any moment."""

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
from pathlib import Path
from typing import Any

import pytest

from q36eval.history import History, RunState
from q36eval.watch.store import FILE
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.watch.conftest import Place

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
