"""Lines while a command starts: libraries are loaded, which takes long from a cold disk. Imports nothing heavy.

While the system loads one shared library nothing else of Python runs: a line that is due then comes after it.
"""

import os
import sys
import threading
import time
from contextlib import suppress

SECONDS_BETWEEN_LINES = 6.0
"""The first line of whoever tells of the work may come three seconds after the last of these: within ten in all."""


class Starting(threading.Thread):
    """Says on stderr that the command prepares, as its progress does later, until it is `over`."""

    def __init__(self) -> None:
        super().__init__(name="starting", daemon=True)
        self._over = threading.Event()
        self._quiet = any(argument in ("-q", "--quiet") for argument in sys.argv[1:])

    def run(self) -> None:
        begun = time.monotonic()
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - begun
            if not self._quiet:
                with suppress(OSError, ValueError):  # nobody listens any more
                    os.write(sys.stderr.fileno(), f"preparing, {seconds:.0f} s so far\n".encode())

    def over(self) -> None:
        """Write nothing from here on."""
        self._over.set()


_started: list[Starting] = []


def begin() -> None:
    """Called once, before anything is imported."""
    _started.append(Starting())
    _started[-1].start()


def over() -> None:
    """Whoever tells of the work tells of it from here on, or the work is done."""
    for started in _started:
        started.over()
    _started.clear()
