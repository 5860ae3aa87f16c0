"""Locks between real processes."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from q36eval.locks import exclusive, is_held

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
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "one.lock"
    with exclusive(path), exclusive(path):
        assert not is_held(path)
