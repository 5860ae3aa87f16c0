"""Runs in the process of a program that a model wrote; given to `python -c` as text, it imports nothing of ours.

The program runs in a thread whose lowest frame is its own, so that no walk along frames leads to the secret, and what
the guard goes by lies in a namespace of its own, with builtins of its own, so that a program that puts other things in
the place of `os.path.realpath` or `isinstance` changes nothing. What the guard refuses ends the process at once: an
exception would hand the program a frame of the guard.
"""

from __future__ import annotations

import _thread
import gc
import json
import os
import posixpath
import resource
import stat
import sys
import time
from functools import partial
from operator import call
from types import SimpleNamespace

TYPE_CHECKING = False  # as of `typing`, which every program would wait for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REFUSED_CODE = 77
STACK_BYTES = 32 << 20
POLL_S = 0.002
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED = ("subprocess.", "socket.", "ctypes.", "gc.", "pty.", "_thread.", "sqlite3.", "sys.monitoring.")
REFUSED_NAMES = frozenset(
    (
        *("os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system"),
        *("signal.pthread_kill", "resource.setrlimit", "resource.prlimit", "syslog.syslog"),
        *("sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"),
    )
)
WRITES = frozenset(
    (
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "os.chflags"),
    )
)
MODULES = frozenset(
    (
        *("ctypes", "_ctypes", "_posixsubprocess", "_multiprocessing", "_posixshmem", "_testcapi", "_testinternalcapi"),
        *("_xxsubinterpreters", "_interpreters", "_sqlite3", "_dbm", "_gdbm", "_socket", "readline", "gc", "posix"),
    )
)
DESCRIPTORS = {
    **{"os.chmod": (2,), "os.chown": (3,), "os.link": (2, 3), "os.mkdir": (2,), "os.remove": (1,), "os.rename": (2, 3)},
    **{"os.rmdir": (1,), "os.symlink": (2,), "os.utime": (3,)},
}
"""Where those state the descriptor of a folder that their paths are below."""
UNAUDITED = ("mkfifo", "mknod", "chroot", "pidfd_open", "setns", "unshare")
"""Of `os`, what no audit event tells of."""


OWN = SimpleNamespace(**vars(os))
"""`os` as it was before the program ran."""


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


def _realpath() -> Callable[[str], str]:
    """`os.path.realpath` that looks nothing up where a program can change it."""
    names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": "own_path"}
    with open(posixpath.__file__, encoding="utf-8") as source:
        exec(compile(source.read(), "own_path", "exec", dont_inherit=True), names)
    names |= {"os": OWN, "stat": SimpleNamespace(**vars(stat))}
    found: Callable[[str], str] = names["realpath"]
    return found


def _elsewhere(folder: str) -> tuple[Callable[..., bool], Callable[[tuple[Any, ...]], bool]]:
    """Whether what is opened, and whether what is changed, lies outside `folder`."""
    inside, realpath = folder + "/", _realpath()

    def place(path: object) -> str:
        if type(path) is bytes:
            path = path.decode("utf-8", "surrogateescape")
        return realpath(path) + "/" if type(path) is str else ""  # what only acts like a path is none

    def within(path: object) -> bool:
        return place(path).startswith(inside)

    def opens_elsewhere(path: object, mode: object, flags: object) -> bool:
        # `os.open`, which states no mode, may mean a path below another folder's descriptor
        relative = mode is None and not (type(path) is str and path.startswith("/"))
        if type(flags) is int and not flags & WRITING:
            return relative or place(path).startswith("/proc/")  # this process's own memory, say
        return relative or not within(path)

    def changes_elsewhere(arguments: tuple[Any, ...]) -> bool:
        paths = [entry for entry in arguments if type(entry) in (str, bytes)]
        return not paths or not all(within(path) for path in paths)

    return opens_elsewhere, changes_elsewhere


def _guard(folder: str) -> None:
    opens_elsewhere, changes_elsewhere = _elsewhere(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        refused = event in REFUSED_NAMES or event.startswith(REFUSED)
        if event == "open":
            refused = opens_elsewhere(*arguments)
        elif event in WRITES:
            below = DESCRIPTORS.get(event, ())
            refused = changes_elsewhere(arguments) or any(arguments[place] != -1 for place in below)
        elif event == "import":
            refused = arguments[0] in MODULES
        elif event == "object.__setattr__":
            refused = arguments[1] == "__code__"  # of this hook, say
        if refused:
            OWN._exit(REFUSED_CODE)

    sys.addaudithook(hook)


def _bare() -> None:
    """Take away what no audit event tells of, and what would run the program's finalizers beside the secret."""
    for name in UNAUDITED:
        for module in (os, sys.modules["posix"]):
            if hasattr(module, name):
                delattr(module, name)
    gc.disable()
    del sys.modules["gc"]


def _run(job: dict[str, Any]) -> tuple[bool, list[Any]]:
    """Whether the program came to its end, and what it raised. Called once, before there is a guard."""
    steps: list[Callable[[], Any]] = []
    done: list[Any] = []
    raised: list[Any] = []
    gate = _thread.allocate_lock()
    gate.acquire()
    steps.append(gate.acquire)
    count, pause = _thread._count, time.sleep
    sys.unraisablehook = raised.append
    _thread.stack_size(STACK_BYTES)
    # made of nothing but calls in C: there is no frame of ours below the program's
    _thread.start_new_thread(done.extend, (map(call, steps),))
    while not count():
        pause(POLL_S)
    _limited(job)
    try:
        steps.append(partial(exec, compile(job["program"], "<program>", "exec", dont_inherit=True), {}))
    except BaseException as error:
        return False, [SimpleNamespace(exc_type=type(error))]
    _bare()
    _guard(job["folder"])
    gate.release()
    while count():
        pause(POLL_S)
    return len(done) == len(steps), raised


def _main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    secret = job.pop("secret").encode()
    ended, raised = _run(job)
    if ended:
        OWN.write(job["told"], secret)
        OWN._exit(0)
    del secret  # the name of what was raised may be a property of the program's
    why = f"it raised {raised[-1].exc_type.__name__}" if raised else "it left before its end"
    OWN.write(job["told"], why.encode())
    OWN._exit(0)


if __name__ == "__main__":
    _main()
