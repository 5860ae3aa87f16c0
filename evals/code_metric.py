"""HumanEval's metric as lm-eval has it, with the programs run by our own runner in the place of the hub's."""

import contextlib
from collections.abc import Iterator
from math import comb
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.code_execution import run_program

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
        raise UsageError(f"The task {config['task']} runs programs in a way that cannot be held in; leave it out.")
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
