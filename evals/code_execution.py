"""lm-eval's `code_eval` without its download from the hub: pass@k of programs written by a model.

Each program runs in its own process with limits on time and memory. This is not a sandbox: a program has all rights of
this user, and runs only if lm-eval's switch HF_ALLOW_CODE_EVAL=1 allows it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from math import comb
from typing import Any

from q36eval.errors import UsageError

CPU_S, WALL_S, MEMORY_BYTES = 3, 12.0, 1 << 30
"""The limits of one program. `CPU_S` is the hub's own limit for a program."""

ENDED = 75
"""The exit code of a program that ran to its last line; one that exits earlier has a different code."""

LAUNCHER = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S}, {CPU_S}))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
exec(compile(sys.stdin.read(), "<program>", "exec", dont_inherit=True), {{}})
os._exit({ENDED})
"""


def passes(program: str, wall_s: float = WALL_S) -> bool:
    """Whether a program runs to its end without an exception; all remaining processes in its group are killed."""
    with tempfile.TemporaryDirectory(prefix="q36eval-code-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", LAUNCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=wall_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == ENDED


class CodeEval:
    """The hub's `code_eval`: the share of programs that pass, by the estimator of Chen et al. 2021 (2107.03374).

    lm-eval computes it once when it imports a task, before programs are allowed: `loading` marks that time.
    """

    loading = True

    def compute(
        self, references: list[str], predictions: list[list[str]], k: list[int]
    ) -> tuple[dict[str, float], Any]:
        """pass@k over problems; a reference is the tests that follow each of its programs."""
        if self.loading:
            return {}, {}
        pairs = zip(references, predictions, strict=True)
        counts = [(len(all_), sum(passes(f"{each}\n{tests}") for each in all_)) for tests, all_ in pairs]
        known = [number for number in k if all(total >= number for total, _ in counts)]
        return {f"pass@{number}": _mean(counts, number) for number in known}, {}


def _mean(counts: list[tuple[int, int]], k: int) -> float:
    """The mean chance that one of k of a problem's n programs is among its c right ones: 1 - C(n-c, k) / C(n, k)."""
    return sum(1.0 - comb(total - right, k) / comb(total, k) for total, right in counts) / len(counts)


@contextlib.contextmanager
def own_code_eval() -> Iterator[None]:
    """lm-eval loads `code_eval` from the hub when it imports a task that names it; ours replaces it."""
    import evaluate

    load, metric = evaluate.load, CodeEval()
    evaluate.load = lambda path, *rest, **named: metric if path == "code_eval" else load(path, *rest, **named)
    try:
        yield
    finally:
        evaluate.load = load
        metric.loading = False


def check_code_metric(config: dict[str, Any]) -> None:
    """Refuse a task that runs programs by anything but `code_eval`.

    Raises:
        UsageError: the task does.
    """
    metrics = [entry["metric"] for entry in config.get("metric_list") or [] if callable(entry.get("metric"))]
    if not metrics or not all(isinstance(metric.__globals__.get("compute_"), CodeEval) for metric in metrics):
        raise UsageError(
            "task-unsupported", f"The task {config['task']} does not run programs by code_eval; leave it out."
        )
