"""Work that is killed at a random moment and done again, in processes forked from one that has loaded all it needs.

Moments are CPU seconds of the process that is killed: they come as far into its work on a busy machine as elsewhere.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

KILLS = 20
"""Moments of a test that kills; these are of the long profile."""


def _start(work: Callable[[], object], moment: float = 0.0) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)  # so that its workers, which hold nothing, can be killed with it
    code = 1
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel then ends it there and then, as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, moment)
        work()
        code = 0
    finally:
        os._exit(code)


def whole(work: Callable[[], object], what: str) -> float:
    """CPU seconds that it took to its end, its workers' left out; ends this process where it failed."""
    read_end, write_end = os.pipe()

    def timed() -> None:
        begun = time.process_time()
        work()
        os.write(write_end, str(time.process_time() - begun).encode())

    failed = os.waitpid(_start(timed), 0)[1]
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        lasted = pipe.read()
    if failed:
        sys.exit(f"{what} failed")
    return float(lasted)


def killed_after(work: Callable[[], object], moment: float) -> bool:
    """Whether a kill after `moment` CPU seconds (0: one that `work` brings upon itself) came before its end."""
    child = _start(work, moment)
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.WIFSIGNALED(status)


def runs(process: int) -> bool:
    """Whether that process has not ended yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
