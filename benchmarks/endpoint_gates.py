"""The sandbox's whole gate in this process and through an endpoint: `python -m benchmarks.endpoint_gates [BRANCH …]`.

Each branch (bf16, fp8-head, int2-experts by default) is gated twice in one state: by the engine in process, and through
the tests' own server with vLLM's answers, in a process of its own. Prints verdicts, lanes, seconds and the KL of both,
and ends with 1 where a verdict differs or something was not measured. Through an endpoint a branch takes ten minutes or
more on two cores, so this is no test.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.branches import folder_of
from tests.q36eval.openai.server import SANDBOX

ROOT = Path(__file__).parents[1]
FOLDERS = {"bf16": SANDBOX, "fp8-head": SANDBOX.parent / "fp8-head"}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder behind an endpoint of another process; gives its address."""
    command = [sys.executable, "-m", "tests.q36eval.openai.server", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def judged(state: Path, *arguments: str) -> dict[str, Any]:
    """What a gate reports, and its seconds."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "q36eval", "gate", *arguments, "--json"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | {"Q36EVAL_STATE": str(state)}
    )
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report | {"seconds": time.monotonic() - begun}


def main() -> int:
    """Gate each branch both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", default=["bf16", "fp8-head", "int2-experts"])
    print("| branch | engine | verdict | lanes | not measured | s |\n|---|---|---|---|---|---|")
    alike = True
    with tempfile.TemporaryDirectory() as folder:
        for branch in parser.parse_args().branches:
            here = judged(Path(folder), "--branch", branch)
            row(branch, "in process", here)
            with served(FOLDERS[branch] if branch in FOLDERS else folder_of(branch)) as address:
                there = judged(Path(folder), "--branch", branch, "--engine", "openai", "--base-url", address)
            row(branch, "endpoint", there)
            alike = alike and there["verdict"] == here["verdict"] and lanes(there) == lanes(here)
            alike = alike and not not_measured(there)
    return 0 if alike else 1


def lanes(report: dict[str, Any]) -> dict[str, str]:
    """The verdict of each."""
    return {each["lane"]: each["verdict"] for each in report["lanes"]}


def not_measured(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What a probe did not measure, but for what was skipped."""
    return [each for each in report["failures"] if each["kind"] != "skipped"]


def row(branch: str, engine: str, report: dict[str, Any]) -> None:
    """One line of the table."""
    of_lanes = ", ".join(f"{lane}: {verdict}" for lane, verdict in lanes(report).items())
    missing = len(not_measured(report))
    print(
        f"| {branch} | {engine} | {report['verdict']} | {of_lanes} | {missing} | {report['seconds']:.0f} |", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
