"""Programs that a model wrote: right ones pass, and hostile ones neither pass nor get out."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from q36eval.evals.code_execution import CodeEval, Limits, run_program

PATIENT = Limits(wall_s=600.0)
"""For what ends by itself: on a busy machine that takes its time."""
LIMITS = Limits(cpu_s=1, wall_s=4, memory_bytes=512 << 20, file_bytes=1 << 20)
RIGHT = """
import bisect, copy, datetime, decimal, enum, fractions, hashlib, os, statistics, tempfile, textwrap
import collections, dataclasses, functools, heapq, itertools, json, math, random, re, string
from typing import List
Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass
class Held:
    items: List[int]

assert Held.__annotations__ == {"items": List[int]}, "as without any future import"
with tempfile.NamedTemporaryFile("w") as file:
    file.write("x")
os.mkdir("folder")
open("own.txt", "w").write("x")
assert open("own.txt").read() == "x" and Pair(1, 2).a == 1 and Held([1]).items == [1] and math.gcd(4, 6) == 2
"""
HOSTILE = {
    "endless loop": "while True: pass",
    "endless loop that catches all": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "sleep": "import time\ntime.sleep(3600)",
    "fork bomb": "import os\nwhile True: os.fork()",
    "memory": "held = []\nwhile True: held.append(bytearray(10**8))",
    "large file": "file = open('large', 'wb')\nwhile True: file.write(bytes(10**6))",
    "write outside": "open(OUTSIDE, 'w').write('x')",
    "write outside below Python": "import os\nos.close(os.open(OUTSIDE, os.O_CREAT | os.O_WRONLY))",
    "write outside by a link": "import os\nos.symlink(os.path.dirname(OUTSIDE), 'link')\nopen('link/gone', 'w')",
    "remove": "import os\nos.remove(KEPT)",
    "another process": "import subprocess\nsubprocess.run(['touch', OUTSIDE])",
    "another process by hand": "import _posixsubprocess",
    "a shell": "import os\nos.system('touch ' + OUTSIDE)",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)",
    "native code": "import ctypes",
    "exit 0": "import sys\nsys.exit(0)",
    "hard exit 0": "import os\nos._exit(0)",
    "false success": "import os\nprint('passed')\nfor fd in range(3, 64):\n  try: os.write(fd, b'0' * 32)\n"
    "  except OSError: pass\nos._exit(0)",
    "the secret in a frame": "import os, sys\nframe = sys._getframe()\nwhile frame:\n"
    "  job = frame.f_locals.get('job')\n"
    "  if job: os.write(job['told'], job['secret'].encode()); os._exit(0)\n  frame = frame.f_back\nassert False",
    "success written over failure": "import os\nwrite = os.write\n"
    "os.write = lambda fd, told: write(fd, told.split(b' ')[0])\nassert False",
    "a name that tells": "class Meta(type):\n  @property\n  def __name__(cls):\n    import os, sys\n"
    "    frame = sys._getframe()\n    while frame:\n      for held in list(frame.f_locals.values()):\n"
    "        for fd in range(3, 64) if isinstance(held, bytes) else ():\n          try: os.write(fd, held)\n"
    "          except OSError: pass\n      frame = frame.f_back\n    return ''\n"
    "class Told(Exception, metaclass=Meta): pass\nraise Told",
    "memory read": "import os\nopen('/proc/self/mem', 'rb')",
    "a guard without rules": "import __main__\n__main__.REFUSED = ('-',)\n"
    "__main__.REFUSED_NAMES = __main__.WRITES = frozenset()\n__main__.ALLOWED_WRITES = __main__.WRITING = 0\n"
    "open(OUTSIDE, 'w')",
    "a guard that resolves wrongly": "import os\ninside = os.getcwd() + '/x'\n"
    "os.path.realpath = lambda path: inside\nopen(OUTSIDE, 'w')",
    "a guard with other builtins": "import builtins\nbuiltins.bool = lambda *_: False\n"
    "builtins.isinstance = lambda *_: True\nopen(OUTSIDE, 'w')",
    "a guard seen from its error": "try: open(OUTSIDE, 'w')\nexcept PermissionError as error:\n"
    "  last = error.__traceback__\n  while last.tb_next: last = last.tb_next\n"
    "  last.tb_frame.f_locals['within'].__closure__[0].cell_contents = '/'\nopen(OUTSIDE, 'w')",
    "write below another folder": "import os\nfolder = os.open(os.path.dirname(OUTSIDE), os.O_RDONLY)\n"
    "os.close(os.open('outside', os.O_CREAT | os.O_WRONLY, dir_fd=folder))",
    "make below another folder": "import os\nfolder = os.open(os.path.dirname(OUTSIDE), os.O_RDONLY)\n"
    "os.mkdir('outside', dir_fd=folder)",
    "a pipe outside": "import os\nos.mkfifo(OUTSIDE)",
    "a database outside": "import sqlite3\nsqlite3.connect(OUTSIDE).execute('create table a(b)')",
    "shared memory": "import _posixshmem",
    "wrong": "assert 1 == 2",
    "no program": "def f(:",
    "environment": "import os\nassert os.environ.get('A_SECRET') is None\nassert False, 'only when it is gone'",
}


def test_a_right_program_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    outcome = run_program(RIGHT + "import os\nassert 'A_SECRET' not in os.environ", PATIENT)
    assert outcome.passed, outcome.reason


@pytest.mark.long
@pytest.mark.parametrize("without_namespaces", [False, True])
def test_hostile_programs_neither_pass_nor_get_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_namespaces: bool
) -> None:
    outside, kept = tmp_path / "outside", tmp_path / "kept"
    kept.write_text("x")
    if without_namespaces:  # as where the system lets nobody make them
        monkeypatch.setattr("q36eval.evals.code_execution.isolation", tuple)
    programs = (
        HOSTILE if not without_namespaces else {name: HOSTILE[name] for name in ("fork bomb", "sleep", "network")}
    )

    def run(name: str) -> None:
        begun = time.monotonic()
        outcome = run_program(f"OUTSIDE = {str(outside)!r}\nKEPT = {str(kept)!r}\n{programs[name]}", LIMITS)
        assert not outcome.passed, name
        assert time.monotonic() - begun < 1200, f"{name} outlived its limits"
        assert not outside.exists(), name

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, programs))
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}


def test_what_went_wrong_is_told_and_a_quick_program_is_never_missed() -> None:
    reasons = {
        "1 / 0": "it raised ZeroDivisionError",
        "exit()": "it raised NameError",
        "def f(:": "it raised SyntaxError",
    }
    reasons |= {"raise SystemExit": "it left before its end", "import gc": "it did what a measured program may not"}
    for program, reason in reasons.items():
        assert run_program(program, PATIENT).reason == reason
    assert all(run_program("x = 1", PATIENT).passed for _ in range(10))


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """A program that closes everything and waits is killed with its process group."""
    before = _processes()
    assert not run_program("import time\ntime.sleep(3600)", Limits(wall_s=1.0)).passed
    deadline = time.monotonic() + 300
    while (left := _processes() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_pass_at_k_is_the_published_estimator() -> None:
    """Of two programs one is right: one draw of it has a chance of a half, two draws are sure."""
    right, wrong = "def add(a, b): return a + b", "def add(a, b): return a - b"
    found, details = CodeEval().compute(["assert add(2, 3) == 5"], [[right, wrong]], [1, 2, 3])
    assert found == {"pass@1": 0.5, "pass@2": 1.0}, "three draws of two programs have no estimate"
    assert [reason for _, reason in details[0]] == ["it ran to its end", "it raised AssertionError"]


def _processes() -> set[str]:
    """This user's processes that run the harness."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"a measured program may not do this" in path.read_bytes() and path.owner() == _me():
                found.add(path.parent.name)
        except (OSError, KeyError):
            continue
    return found


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
