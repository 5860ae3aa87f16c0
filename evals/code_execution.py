"""Runs programs that a model wrote, and scores them as HumanEval does: in a process of their own, only when allowed.

What holds a program in: limits of the operating system on time, memory, processes and files; namespaces without
network and without other processes where `unshare` may make them; an empty environment and an empty folder; and an
audit hook that ends it when it asks for processes, threads, sockets, native code or writes elsewhere. Success is a
secret written when the program has run to its end, never an exit code or a print. This stops accidents and the usual
hostility; files that this user may read can be read. It is no wall against a program made to break this very runner:
Python cannot hold Python in. Measure as a user who owns nothing.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from math import comb
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError

HARNESS = Path(__file__).with_name("_code_harness.py")
REFUSED_CODE = 77
"""The harness's exit code when the program did what it may not."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. `cpu_s` is lm-eval's own time limit for a program."""

    cpu_s: int = 3
    wall_s: float = 12.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20


@dataclass(frozen=True)
class Outcome:
    """Whether a program ran to its end, and what happened when not."""

    passed: bool
    reason: str


def run_program(program: str, limits: Limits | None = None) -> Outcome:
    """Run `program` to its end, or until it raises, exits or reaches a limit; every process it leaves is killed."""
    chosen = limits or Limits()
    secret = secrets.token_hex(16)
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="q36eval-code-") as folder, os.fdopen(reading, "rb") as result:
        process = subprocess.Popen(
            [*isolation(), sys.executable, "-I", "-S", "-B", "-c", _launcher()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        job = {"program": program, "secret": secret, "told": writing, "folder": os.path.realpath(folder)}
        try:
            process.communicate(json.dumps(job | asdict(chosen)).encode(), timeout=chosen.wall_s)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"it did not end within {chosen.wall_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _outcome(result.read(4096).decode("utf-8", "replace"), secret, process.returncode)


def _launcher() -> str:
    """The harness in a namespace and with builtins that no program finds by a name."""
    text = HARNESS.read_text(encoding="utf-8")
    return f"exec({text!r}, {{'__builtins__': dict(vars(__builtins__)), '__name__': '__main__'}})"


def _outcome(result: str, secret: str, code: int) -> Outcome:
    if result == secret:
        return Outcome(True, "it ran to its end")
    if code == REFUSED_CODE:
        return Outcome(False, "it did what a measured program may not")
    if result and code == 0:
        return Outcome(False, "".join(filter(str.isprintable, result))[:200])
    return Outcome(False, f"it was stopped at a limit, or left before its end (exit code {code})")


@cache
def isolation() -> tuple[str, ...]:
    """How a command is given namespaces without network and other processes; nothing where the system refuses."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    for options in (("--pid", "--fork", "--kill-child", "--net"), ("--net",)):
        command = (unshare, "--user", "--map-root-user", *options)
        try:
            done = subprocess.run([*command, "true"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return command
    return ()


METRIC = "code_eval"


class CodeEval:
    """The hub's `code_eval`: the share of programs that pass, by the estimator of Chen et al. 2021 (2107.03374)."""

    def compute(
        self, references: list[str], predictions: list[list[str]], k: list[int]
    ) -> tuple[dict[str, float], Any]:
        """pass@k over problems; a reference is the tests that follow each of its programs."""
        counts, details = [], {}
        for number, (tests, programs) in enumerate(zip(references, predictions, strict=True)):
            outcomes = [run_program(f"{program}\n{tests}") for program in programs]
            details[number] = [(index, outcome.reason) for index, outcome in enumerate(outcomes)]
            counts.append((len(outcomes), sum(outcome.passed for outcome in outcomes)))
        known = [number for number in k if all(total >= number for total, _ in counts)]
        return {f"pass@{number}": _mean(counts, number) for number in known}, details


def _mean(counts: list[tuple[int, int]], k: int) -> float:
    """The mean chance that one of k of a problem's n programs is among its c right ones: 1 - C(n-c, k) / C(n, k)."""
    return sum(1.0 - comb(total - right, k) / comb(total, k) for total, right in counts) / len(counts)


def run_sandboxed(config: dict[str, Any]) -> None:
    """Give the metric of a task its programs' runner.

    Raises:
        UsageError: the task runs programs in a way that is not known here.
    """
    metrics = [entry["metric"] for entry in config.get("metric_list") or [] if callable(entry.get("metric"))]
    if not metrics or not all("compute_" in metric.__globals__ for metric in metrics):
        raise UsageError(
            "task-unsupported",
            f"The task {config['task']} runs programs in a way that cannot be held in; leave it out.",
        )
    for metric in metrics:
        metric.__globals__["compute_"] = CodeEval()


@contextlib.contextmanager
def no_download() -> Iterator[None]:
    """lm-eval loads `code_eval` from the hub as soon as a task file names it; meanwhile ours stands there."""
    import evaluate

    load = evaluate.load

    def ours(path: str, *arguments: Any, **named: Any) -> Any:
        return _Unused() if path == METRIC else load(path, *arguments, **named)

    evaluate.load = ours
    try:
        yield
    finally:
        evaluate.load = load


class _Unused:
    """lm-eval tries the metric when it is imported, before anybody allowed a program to run."""

    def compute(self, **_: Any) -> tuple[dict[str, float], dict[int, Any]]:
        return {}, {}
