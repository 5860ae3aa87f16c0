"""The whole gate of the sandbox through an endpoint: its verdicts are those of the engine in this process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.branches import folder_of
from tests.commands import q36eval
from tests.q36eval.openai.server import SANDBOX

pytestmark = pytest.mark.long

FOLDERS = {"bf16": lambda: SANDBOX, "fp8-head": lambda: SANDBOX.parent / "fp8-head"}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder behind an endpoint of another process; gives its address."""
    command = [sys.executable, "-m", "tests.q36eval.openai.server", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the reference is captured once."""
    return tmp_path_factory.mktemp("state")


def judged(state: Path, *arguments: str) -> dict[str, Any]:
    done = q36eval("gate", *arguments, "--json", state=state)
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report


@pytest.mark.parametrize("branch", ["bf16", "fp8-head", "int2-experts"])
def test_the_verdict_is_the_same_through_an_endpoint(branch: str, state: Path) -> None:
    here = judged(state, "--branch", branch)
    with served(FOLDERS.get(branch, lambda: folder_of(branch))()) as address:
        there = judged(state, "--branch", branch, "--engine", "openai", "--base-url", address)
    assert there["verdict"] == here["verdict"]
    assert {each["lane"]: each["verdict"] for each in there["lanes"]} == {
        each["lane"]: each["verdict"] for each in here["lanes"]
    }
    failures = [each for each in there["failures"] if each["kind"] != "skipped"]
    assert not failures, "whatever the verdict needed was measured"
