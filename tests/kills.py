"""Work that is killed at a random moment and done again, in processes forked from one that has loaded all it needs."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

from tests.profiles import sized

KILLS = sized(3, 20)
"""Moments of a test that kills; `make test-long` takes twenty."""


def _start(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)  # so that the kill takes its workers along, which hold nothing
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def whole(work: Callable[[], object], what: str) -> float:
    """Seconds that it took to its end; ends this process where it failed."""
    begun = time.monotonic()
    if os.waitpid(_start(work), 0)[1]:
        sys.exit(f"{what} failed")
    return time.monotonic() - begun


def killed_after(work: Callable[[], object], moment: float) -> bool:
    """Whether SIGKILL after `moment` seconds came before its end."""
    child = _start(work)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.WIFSIGNALED(status)
