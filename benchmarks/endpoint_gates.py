"""The sandbox's whole gate in this process and through an endpoint: `python -m benchmarks.endpoint_gates [BRANCH …]`.

Each branch (bf16, fp8-head, int2-experts by default) is gated twice in one state: by the engine in process, and through
the tests' own server with vLLM's answers, in a process of its own. Prints verdicts, lanes, the KL of both, what was not
measured, seconds by the clock and of processors (the server's are told apart), and the seconds of each stage; ends with
1 where a verdict differs or something was not measured. It takes a quarter of an hour or more on two cores, so this is
no test.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.branches import folder_of
from tests.q36eval.openai.server import SANDBOX

ROOT = Path(__file__).parents[1]
FOLDERS = {"bf16": SANDBOX, "fp8-head": SANDBOX.parent / "fp8-head"}
AT_ONCE = 64
"""Requests under way, and answers that the server computes together."""


@dataclass(frozen=True)
class Judged:
    """A gate's report, its stages' seconds, and what it took: `processor` and `server` are seconds of processors."""

    report: dict[str, Any]
    stages: dict[str, float]
    clock: float
    processor: float
    server: float = 0.0

    @property
    def lanes(self) -> dict[str, str]:
        """The verdict of each."""
        return {each["lane"]: each["verdict"] for each in self.report["lanes"]}

    @property
    def not_measured(self) -> list[dict[str, Any]]:
        """What a probe did not measure, but for what was skipped."""
        return [each for each in self.report["failures"] if each["kind"] != "skipped"]

    @property
    def kl(self) -> str:
        """Nats per token, where the gate went so far."""
        value = next((each["value"] for each in self.report["criteria"] if each["id"] == "kl"), None)
        return "not reached" if value is None else f"{value:.2e}"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder behind an endpoint of another process; gives its address."""
    command = [sys.executable, "-m", "tests.q36eval.openai.server", str(folder), "--port", "0"]
    command += ["--batch", str(AT_ONCE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def of_children() -> float:
    """Seconds of processors of the processes that were started here and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged(state: Path, *arguments: str) -> Judged:
    """What a gate says, and what it took."""
    begun, used = time.monotonic(), of_children()
    command = [sys.executable, "-m", "q36eval", "gate", *arguments, "--json"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | {"Q36EVAL_STATE": str(state)}
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return Judged(said["report"], said["run"]["timings"], time.monotonic() - begun, of_children() - used)


def through_endpoint(state: Path, branch: str) -> Judged:
    """The same through an endpoint."""
    used = of_children()
    with served(FOLDERS[branch] if branch in FOLDERS else folder_of(branch)) as address:
        options = ("--engine", "openai", "--base-url", address, "--batch-size", str(AT_ONCE))
        there = judged(state, "--branch", branch, *options)
    server = of_children() - used - there.processor
    return Judged(there.report, there.stages, there.clock, there.processor, server)


def main() -> int:
    """Gate each branch both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", default=["bf16", "fp8-head", "int2-experts"])
    parser.add_argument("--state", type=Path, help="a folder to keep, with the reference as captured before, if it was")
    given = parser.parse_args()
    print("| branch | engine | verdict | lanes | KL | not measured | s | processor s (of it the server) | stages, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    alike = True
    with tempfile.TemporaryDirectory() if given.state is None else nullcontext(str(given.state)) as folder:
        for branch in given.branches:
            here = judged(Path(folder), "--branch", branch)
            row(branch, "in process", here)
            there = through_endpoint(Path(folder), branch)
            row(branch, "endpoint", there)
            alike = alike and there.report["verdict"] == here.report["verdict"] and there.lanes == here.lanes
            alike = alike and not there.not_measured
    return 0 if alike else 1


def row(branch: str, engine: str, gate: Judged) -> None:
    """One line of the table."""
    of_lanes = ", ".join(f"{lane}: {verdict}" for lane, verdict in gate.lanes.items())
    stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in gate.stages.items() if seconds >= 1)
    processors = f"{gate.processor + gate.server:.0f} ({gate.server:.0f})"
    cells = [branch, engine, gate.report["verdict"], of_lanes, gate.kl, len(gate.not_measured)]
    print("| " + " | ".join(map(str, [*cells, f"{gate.clock:.0f}", processors, stages])) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
