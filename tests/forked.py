"""The command line in a forked process of its own: it can be interrupted, and be refused what root may do."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUCK_SECONDS = 600
"""After which a child says where it stands, and ends: a lock that another thread held at the fork is never released."""


@dataclass(frozen=True)
class Child:
    """A running child and the file its stderr goes to."""

    pid: int
    stderr: Path

    def wait(self) -> int:
        """Its exit code; minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


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
    """Let the inspection wait for a signal, of whatever kind, so that one sent while it runs never comes too late."""
    inspecting_after(signal.pause)


def inspecting_after(wait: Callable[[], object]) -> None:
    """Let the inspection begin by calling `wait`."""
    from q36eval.checkpoints import inspection

    whole = inspection.inspect_checkpoint

    def waits(*arguments: Any, **options: Any) -> Any:
        wait()
        return whole(*arguments, **options)

    inspection.inspect_checkpoint = waits
