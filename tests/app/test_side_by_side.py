"""Branches of one gate at the same time: what each has for itself, what is shared, and how they end together."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.app.cli.branch_process import Outcome
from q36eval.app.cli.options import open_history
from q36eval.app.cli.side_by_side import SideBySide, devices_of
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.engines.vllm import environment as of_vllm
from q36eval.errors import EngineError, UsageError
from q36eval.history import RunState
from q36eval.records import Verdict

POLICY = """
name: intact
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured], waivable: false}
"""


def test_every_branch_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7,8")
    assert devices_of(EngineOptions(device="cuda"), 3) == ["2", "3", "5"]
    assert devices_of(EngineOptions(device="cuda", workers=2), 2) == ["2,3", "5,7"]
    spread = EngineOptions(kind="vllm", device="cuda", engine_arguments=("tensor_parallel_size=2",))
    assert devices_of(spread, 2) == ["2,3", "5,7"]
    with pytest.raises(UsageError, match="3 branches at once, each on 2 GPUs, need 6 GPUs, and 5 can be seen"):
        devices_of(EngineOptions(device="cuda", workers=2), 3)
    with pytest.raises(UsageError, match="names one GPU"):
        devices_of(EngineOptions(device="cuda:1"), 2)
    unnamed = replace(spread, device="cpu", engine_python="somewhere")
    for on_cpu, expected in ((False, ["2,3", "5,7"]), (True, [None, None])):
        there = SimpleNamespace(on_cpu=on_cpu)  # vLLM's own GPUs are taken whatever --device says
        monkeypatch.setattr(of_vllm, "environment", lambda python, there=there: there)
        assert devices_of(unnamed, 2) == expected
    for shared in (EngineOptions(), EngineOptions(device="cuda", workers=9, ray="auto")):
        assert devices_of(shared, 2) == [None, None]


class Partly(SideBySide):
    """Of three branches the second's process cannot be started."""

    def _in_a_process(self, name: str, request: Any, devices: str | None) -> Outcome:
        return super()._in_a_process(name, request, devices) if name == "second" else Outcome(name)


def test_a_process_that_cannot_be_started_costs_its_branch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    three: Any = [(name, None) for name in ("first", "second", "third")]
    paths = replace(Paths.default(), state=tmp_path)
    first, second, third = Partly([None, None], paths).outcomes(three)
    assert (first.run_id, third.run_id) == ("first", "third")
    assert isinstance(second.error, EngineError)
    assert "No process could be started to measure second" in str(second.error)
    interrupted = Partly([None, None], paths).outcomes(three)
    next(interrupted)
    with pytest.raises(KeyboardInterrupt):
        interrupted.throw(KeyboardInterrupt())


def command(folder: Path, *options: str) -> list[str]:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    skipped = [word for probe in ("kl", "evals", "canaries") for word in ("--skip", probe)]
    return [sys.executable, "-m", "q36eval", "gate", "--policy", str(policy), *skipped, *options]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"Q36EVAL_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_each_has_its_verdict_and_one_that_is_not_there_costs_no_other(tmp_path: Path) -> None:
    asked = ("--branch", "fp8-head", "--branch", "nowhere", "--branch", "int2-experts", "--at-once", "2")
    done = subprocess.run(
        command(tmp_path, *asked, "--json", "--out", str(tmp_path / "out")),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    first, absent, last = json.loads(done.stdout)["reports"]
    assert (first["report"]["verdict"], last["report"]["verdict"]) == ("PASS", "PASS")
    assert "nowhere" in absent["problem"]
    for name in ("fp8-head", "int2-experts"):
        assert (tmp_path / "out" / name / "report.json").is_file()
        assert f"[{name}] " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_together_none_is_judged_and_all_can_be_resumed(number: signal.Signals, tmp_path: Path) -> None:
    asked = ("--branch", "fp8-head", "--branch", "int2-experts", "--at-once", "2")
    process = subprocess.Popen(command(tmp_path, *asked), env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    begun, lines = set(), []
    for line in process.stderr:
        lines.append(line)
        begun |= {name for name in asked[1:4:2] if line.startswith(f"[{name}] inspecting the checkpoint")}
        if len(begun) == 2:
            break
    told = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
    assert len(told.split()) >= 2, lines
    process.send_signal(number)
    rest = process.stderr.read()
    process.wait()
    assert "Traceback" not in rest
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(Path(f"/proc/{child}").exists() for child in told.split()):
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in told.split())
    runs = open_history(replace(Paths.default(), state=tmp_path / "state")).list_runs()
    assert len(runs) == 2
    # one may have come to its end before it was stopped: then it has the verdict that it has alone
    states = [run.report.verdict if run.report is not None else run.state for run in runs]
    assert set(states) <= {RunState.INTERRUPTED, RunState.RUNNING, Verdict.PASS}, states
    if number == signal.SIGTERM:
        assert process.returncode == 143, rest
        assert "Stopped by SIGTERM" in rest
        assert rest.count("--resume") == states.count(RunState.INTERRUPTED)
