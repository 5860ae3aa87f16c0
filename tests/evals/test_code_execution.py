"""Programs that a model wrote: those that run to their end pass, and none outlives its limits."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from q36eval.errors import UsageError
from q36eval.evals.code_execution import CodeEval, check_code_metric, own_code_eval, passes
from q36eval.evals.lm_configs import expand, read_config
from tests.forked import runs
from tests.raising import raises

PATIENT_S = 600.0
"""For programs that end by themselves, on a busy machine."""
RIGHT = """
import bisect, collections, dataclasses, hashlib, math, os, random, re, tempfile
from typing import List

@dataclasses.dataclass
class Held:
    items: List[int]

assert Held.__annotations__ == {"items": List[int]}, "as without any future import"
with tempfile.NamedTemporaryFile("w") as file:
    file.write("x")
open("own.txt", "w").write("ž")
assert open("own.txt").read() == "ž" and Held([1]).items == [1] and math.gcd(4, 6) == 2
assert "A_SECRET" not in os.environ
"""


def test_a_right_program_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    assert passes(RIGHT, PATIENT_S)
    assert all(passes("x = 1", PATIENT_S) for _ in range(3))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("while True: pass", marks=pytest.mark.long),
        pytest.param("while True:\n  try:\n    while True: pass\n  except BaseException: pass", marks=pytest.mark.long),
        pytest.param("held = []\nwhile True: held.append(bytearray(10**8))", marks=pytest.mark.long),
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "assert 1 == 2",
        "def f(:",
        "\ud800",
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(program: str) -> None:
    assert not passes(program, PATIENT_S)


def test_a_waiting_program_is_killed_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = f"import os, time\nos.fork()\nopen({str(file)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(3600)"
    assert not passes(program, 2.0)
    deadline = time.monotonic() + 60
    while any(runs(int(pid)) for pid in file.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(runs(int(pid)) for pid in file.read_text().split())


def test_pass_at_k_is_the_published_estimator() -> None:
    """Of two programs one is right: one draw of it has a chance of a half, two draws are sure."""
    right, wrong = "def add(a, b): return a + b", "def add(a, b): return a - b"
    metric = CodeEval()
    assert metric.compute(["assert add(2, 3) == 5"], [[right, wrong]], [1]) == ({}, {})
    metric.loading = False
    figures, _ = metric.compute(["assert add(2, 3) == 5"], [[right, wrong]], [1, 2, 3])
    assert figures == {"pass@1": 0.5, "pass@2": 1.0}, "three draws of two programs have no estimate"


def test_humaneval_of_lm_eval_is_scored_offline() -> None:
    (task,) = expand(["humaneval"])
    with own_code_eval():
        config = read_config(task)
    check_code_metric(config)
    (entry,) = config["metric_list"]
    tests = "def check(f):\n    assert f(1) == 2\ncheck(add)"
    right, wrong = "def add(a): return a + 1", "def add(a): return a"
    assert entry["metric"](references=[tests, tests], predictions=[[right], [wrong]], k=entry["k"]) == {"pass@1": 0.5}


def test_a_task_that_runs_programs_another_way_is_refused() -> None:
    config: dict[str, Any] = {"task": "own", "metric_list": [{"metric": os.path.join}]}
    for each in (config, {"task": "own"}):
        with raises(UsageError, "task-unsupported"):
            check_code_metric(each)
