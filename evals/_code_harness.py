"""Runs in the process of a program that a model wrote; given to `python -c` as text, it imports nothing of ours."""

from __future__ import annotations

import json
import os
import resource
import sys

TYPE_CHECKING = False  # as of `typing`, which every program would wait for
if TYPE_CHECKING:
    from typing import Any

ALLOWED_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED = ("subprocess.", "socket.", "ctypes.", "gc.", "pty.", "_thread.")
REFUSED_NAMES = frozenset(
    (
        *("os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system"),
        *("signal.pthread_kill", "resource.setrlimit", "resource.prlimit", "syslog.syslog", "sys._current_frames"),
    )
)
WRITES = frozenset(
    (
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "os.chflags"),
    )
)
MODULES = frozenset({"ctypes", "_ctypes", "_posixsubprocess", "_multiprocessing", "_testcapi", "_xxsubinterpreters"})


def _limited(job: dict[str, Any]) -> None:
    for name, value in (
        ("RLIMIT_CPU", job["cpu_s"]),
        ("RLIMIT_AS", job["memory_bytes"]),
        ("RLIMIT_FSIZE", job["file_bytes"]),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def _guard(folder: str) -> None:
    inside = folder + os.sep

    def within(path: object) -> bool:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return False
        return os.path.realpath(path).startswith(inside)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        refused = event in REFUSED_NAMES or event.startswith(REFUSED)
        if event == "open":
            path, _, flags = arguments
            writes = bool(flags & ALLOWED_WRITES) if isinstance(flags, int) else True
            refused = writes and not within(path)
        elif event in WRITES:
            paths = [entry for entry in arguments if isinstance(entry, str | bytes)]
            refused = not paths or not all(within(path) for path in paths)
        elif event == "import":
            refused = arguments[0] in MODULES
        elif event == "object.__setattr__":
            refused = arguments[1] == "__code__"  # of this hook, say
        if refused:
            raise PermissionError(f"a measured program may not do this: {event}")

    sys.addaudithook(hook)


def _run(program: str) -> str:
    """What the program does wrong, or nothing. It sees neither the job nor the secret by any name."""
    try:
        exec(compile(program, "<program>", "exec"), {})
    except BaseException as error:
        return f"it raised {type(error).__name__}"
    return ""


def _main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    _limited(job)
    _guard(job["folder"])
    trouble = _run(job["program"])
    os.write(job["told"], f"{job['secret']} {trouble}".strip().encode())
    os._exit(0)


if __name__ == "__main__":
    _main()
