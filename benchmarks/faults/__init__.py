"""What breaks, what is promised then, and what is seen: `make faults` does every fault for real, as a user sees it.

    python -m benchmarks.faults                 all of them, into docs/reliability.md
    python -m benchmarks.faults --only bytes    one area, or faults whose name holds the word; prints, writes no page

A fault is a function of a `Bench` with a decorator that says what is done and what is promised. It runs the command in
processes of its own, says what it saw in a sentence, and asserts the promise. One that fails is a broken promise: the
campaign then exits 1. Every module of this package is one area, in the order of `AREAS`.

    @fault("a weight file is cut short by a byte", "FAIL, exit 1, the file is named")
    def cut_short(bench: Bench) -> str:
        branch = bench.copy("fp8-head")
        os.truncate(branch / "model.safetensors", (branch / "model.safetensors").stat().st_size - 1)
        return bench.q36eval("gate", "--branch", branch, *bench.weights_alone).told(exit=1)
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.faults.bench import Bench

__all__ = ["AREAS", "Bench", "Fault", "fault", "faults_of"]

AREAS = {
    "bytes": "Checkpoints, references, packs, suites and corpora",
    "streams": "Streams, signals, disks and the pages on a network",
    "history": "History, decisions by people, imports",
    "packaging": "Installation, data and state",
    "inputs": "Options and files that people write",
}


@dataclass(frozen=True)
class Fault:
    """What is done, what is promised in that case, and the function that does it and says what was seen."""

    name: str
    done: str
    promised: str
    run: Callable[[Bench], str]


def fault(done: str, promised: str) -> Callable[[Callable[[Bench], str]], Fault]:
    """Makes a fault of a function."""
    return lambda run: Fault(run.__name__, done, promised, run)


def faults_of(area: str) -> list[Fault]:
    """The faults of an area, in the order of its file."""
    try:
        module = importlib.import_module(f"benchmarks.faults.{area}")
    except ModuleNotFoundError as error:
        if error.name != f"benchmarks.faults.{area}":
            raise
        return []
    return [each for each in vars(module).values() if isinstance(each, Fault)]
