"""Lines on stderr of what a command does; first of all that it prepares, from its first moment. Imports nothing heavy.

Libraries are loaded then, which takes long from a cold disk. While the system loads one shared library nothing else of
Python runs: a line that is due then comes after it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

SECONDS_BETWEEN_LINES = 6.0
"""The first line of whoever tells of the work may come three seconds after the last of these: within ten in all."""


class Lines(threading.Thread):
    """Writes what `line` says to stderr, every `between` seconds, and the first time after `first`.

    Straight to the descriptor: a worker that is forked meanwhile must not inherit a stream that is locked.
    """

    def __init__(self, line: Callable[[], str], first: float, between: float) -> None:
        super().__init__(name="progress", daemon=True)
        self._line, self._first, self._between, self._ended = line, first, between, threading.Event()

    def run(self) -> None:
        pause = min(self._first, self._between)
        while not self._ended.wait(pause):
            pause = self._between
            # nobody listens any more, or the work goes on while it is looked at: the next line comes in time
            with suppress(OSError, ValueError, RuntimeError):
                if line := self._line():
                    os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="replace"))

    def end(self) -> None:
        """Write nothing from here on."""
        self._ended.set()
        self.join()


_started: list[Lines] = []


def begin() -> None:
    """Say that the command prepares, until it is `over`; nothing where only verdicts are wanted."""
    if {"-q", "--quiet"}.isdisjoint(sys.argv[1:]):
        begun = time.monotonic()
        pause = SECONDS_BETWEEN_LINES
        _started.append(Lines(lambda: f"preparing, {time.monotonic() - begun:.0f} s so far", pause, pause))
        _started[-1].start()


def over() -> None:
    """Whoever tells of the work tells of it from here on, or the work is done."""
    while _started:
        _started.pop().end()
