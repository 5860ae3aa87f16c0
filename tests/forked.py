"""The command line in a forked process of its own: it can be interrupted, and be refused what root may do."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUCK_SECONDS = 300
"""After which a child says where it stands, and ends: a lock that another thread held at the fork is never released.
Half of what a test may take, so that the child's own word comes first."""


@dataclass(frozen=True)
class Child:
    """A running child and the file its stderr goes to."""

    pid: int
    stderr: Path

    def wait(self) -> int:
        """Its exit code; minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def until(self, reached: Callable[[], bool]) -> None:
        """Until it has come so far.

        Raises:
            AssertionError: it ended before; with what it said.
        """
        while not reached():
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is None or reached(), (ended.si_status, self.stderr.read_text())
            time.sleep(0.005)

    def has_said(self, word: str) -> bool:
        """Whether it is on its stderr."""
        return self.stderr.exists() and word in self.stderr.read_text()


def start(
    *arguments: str, state: Path, stderr: Path, stdout: str = os.devnull, before: Callable[[], None] | None = None
) -> Child:
    """`q36eval` with these arguments; `before` is done in the child first."""
    child = os.fork()
    if child:
        return Child(child, stderr)
    code = 1
    try:
        # a runner started in the background ignores Ctrl-C, and what it starts inherits that; a person's shell does not
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, path in ((1, stdout), (2, str(stderr))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=sys.stderr)
        code = _command(arguments, state, before)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _command(arguments: tuple[str, ...], state: Path, before: Callable[[], None] | None) -> int:
    import torch

    from q36eval.app.cli import main

    torch.set_num_threads(1)  # the threads of the parent's pool are not here
    os.environ["Q36EVAL_STATE"] = str(state)
    sys.argv = ["q36eval", *arguments]
    if before is not None:
        before()
    main()
    return 0


def without_privileges() -> None:
    """Let file permissions hold for root too: give up all capabilities (capset(2), version 3)."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        nothing = (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
            raise OSError(ctypes.get_errno(), "capset")


def awaiting_ctrl_c() -> None:
    """Let the inspection wait until a signal ends it, so that one sent while it runs never comes too late.

    In short sleeps: a signal that came on the way into a long one, `signal.pause` too, is not acted on before its end.
    """

    def wait() -> None:
        while True:
            time.sleep(0.01)

    inspecting_after(wait)


def inspecting_after(wait: Callable[[], object]) -> None:
    """Let the inspection begin by calling `wait`."""
    from q36eval.checkpoints import inspection

    whole = inspection.inspect_checkpoint

    def waits(*arguments: Any, **options: Any) -> Any:
        wait()
        return whole(*arguments, **options)

    inspection.inspect_checkpoint = waits


# -- work that is killed at a random moment and done again; moments are CPU seconds of the process that is killed


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
