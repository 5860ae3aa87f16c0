"""Ctrl-C and SIGTERM end what runs once, with its workers, and say so once. Locks, between real processes."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from q36eval.interrupts import (
    SECONDS_TO_CLOSE,
    Terminated,
    closing,
    stop_if_told,
    stoppable,
    surviving_hangup,
    uninterrupted,
)
from q36eval.locks import exclusive, is_held
from tests.raising import failing


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_a_first_signal_ends_it_and_a_second_soon_after_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("q36eval.interrupts.time.monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        with pytest.raises(Terminated):
            send(signal.SIGTERM)
        send(signal.SIGTERM, signal.SIGINT)
        now[0] += SECONDS_TO_CLOSE
        with pytest.raises(KeyboardInterrupt):  # a library swallowed the first
            send(signal.SIGINT)
        now[0] += SECONDS_TO_CLOSE
        with closing():
            send(signal.SIGTERM, signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_waits_for_the_end_of_what_is_done_whole() -> None:
    done = []

    def whole() -> None:
        with uninterrupted():
            with uninterrupted():
                send(signal.SIGTERM)
            done.append("all of it")

    with stoppable():
        with pytest.raises(Terminated):
            whole()
        stop_if_told()  # it was told once
        with uninterrupted():
            done.append("nothing came")
    assert done == ["all of it", "nothing came"]


def test_what_is_done_whole_may_ask_whether_it_should_stop() -> None:
    with stoppable(), uninterrupted():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop_if_told()


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stoppable():
            send(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_that_hangs_up_ends_nothing_that_is_measured() -> None:
    for outside in (signal.SIG_IGN, signal.SIG_DFL):  # as `nohup` leaves it, and a terminal
        before = signal.signal(signal.SIGHUP, outside)
        try:
            with surviving_hangup():
                send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is outside
        finally:
            signal.signal(signal.SIGHUP, before)


WORKERS = """
import os, sys, time
from q36eval.engines.forks import in_forks
from q36eval.interrupts import Terminated, stoppable

def work(number):
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece: the other writes at the same time
    time.sleep(600)

try:
    with stoppable():
        list(in_forks(work, [1, 2, 3, 4], 2))
except KeyboardInterrupt as error:
    sys.exit(143 if isinstance(error, Terminated) else 130)
"""


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("whole_group", [True, False])
def test_forked_workers_end_with_their_parent_and_say_nothing(number: int, code: int, whole_group: bool) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", WORKERS],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as program:
        workers = [int(program.stdout.readline()) for _ in range(2)]
        (os.killpg if whole_group else os.kill)(program.pid, number)
        try:
            ended = program.wait(timeout=30)
        except subprocess.TimeoutExpired:  # a library may swallow the first, never a later one
            os.kill(program.pid, number)
            ended = program.wait(timeout=30)
        assert ended == code
        assert program.stderr.read() == ""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.01)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


HOLD = """
import os, sys
from pathlib import Path
from q36eval.locks import exclusive
with exclusive(Path(sys.argv[1])):
    if os.fork() == 0:  # the worker says it: it runs by then, and has let go of the lock
        print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_excludes_and_ends_with_its_holder(tmp_path: Path) -> None:
    """Killed, it frees the lock at once, although a worker that it forked lives on (until its input is closed)."""
    path = tmp_path / "folder" / "one.lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), exclusive(path):
            pass
        holder.kill()
        holder.wait()
        with exclusive(path):
            pass


def test_a_file_system_without_locks_excludes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(OSError(errno.ENOLCK, "no locks available")))
    path = tmp_path / "one.lock"
    with exclusive(path), exclusive(path):
        assert not is_held(path)
