"""The GitHub Action's own steps, run on this machine by the shell and the files that a runner gives them."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.app.cli.gate import gate
from tests.app.sandbox_gates import POLICY, REPOSITORY, copied
from tests.app.test_project_file import POLICY as ONE_LANE
from tests.branches import folder_of
from tests.loopback_hub import Hub

ACTION = REPOSITORY / ".github" / "actions" / "gate"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    return yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The real program, as an executable file in a folder with a space."""
    path = tmp_path / "a b" / "q36eval"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n")
    with path.open("a") as file:
        file.write("from q36eval.app.cli import main\nmain()\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Runner:
    """What a runner does with a composite action's `run` steps."""

    def __init__(self, action: dict[str, Any], folder: Path, inputs: dict[str, str]) -> None:
        defaults = {name: str(told.get("default", "")) for name, told in action["inputs"].items()}
        assert not set(inputs) - set(defaults)
        self.inputs, self.outputs = defaults | inputs, {}
        self._action, self._folder = action, folder
        self.log = ""

    def run(self) -> list[int]:
        """The exit code of every step, in order; as with `always()`, all are run."""
        return [self._step(step) for step in self._action["runs"]["steps"] if "run" in step]

    def _step(self, step: dict[str, Any]) -> int:
        assert step["shell"] == "bash"
        script, output = self._folder / "step.sh", self._folder / "output"
        script.write_text(step["run"])
        output.write_text("")
        environment = {name: self._evaluated(value) for name, value in step.get("env", {}).items()}
        runner = {"GITHUB_ACTION_PATH": str(ACTION), "GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(self._folder)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
            cwd=self._folder,
            env={**os.environ, **runner, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        self.log += done.stdout + done.stderr
        found = dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.outputs |= {f"steps.{step['id']}.outputs.{name}": value for name, value in found.items()}
        return done.returncode

    def _evaluated(self, text: str) -> str:
        names = {f"inputs.{name}": value for name, value in self.inputs.items()} | self.outputs
        return EXPRESSION.sub(lambda found: names.get(found[1], ""), text)


def test_no_input_is_part_of_a_program(action: dict[str, Any]) -> None:
    """An expression in a script would be pasted into it before the shell reads it."""
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step for step in steps if "${{" in step.get("run", "")] == []
    script = (ACTION / "gate.sh").read_text()
    assert "eval " not in script.replace("q36eval ", "")
    used = {name for step in steps if step.get("uses", "").startswith("./") for name in step["with"]}
    assert used <= set(action["inputs"])


def test_every_input_reaches_the_gate_and_every_output_is_set(action: dict[str, Any]) -> None:
    named = EXPRESSION.findall(yaml.safe_dump(action["runs"]))
    assert {f"inputs.{name}" for name in action["inputs"]} == {
        word for text in named for word in re.findall(r"inputs\.[a-z-]+", text)
    } | {"inputs.artifact-name", "inputs.fail"}
    script = (ACTION / "gate.sh").read_text()
    assert all(name in script for name in action["runs"]["steps"][1]["env"])
    for option in re.findall(r"add --([a-z-]+)", script):
        assert option.replace("-", "_") in gate.__annotations__
    outputs = EXPRESSION.findall(yaml.safe_dump(action["outputs"]))
    assert all(f'echo "{name.rpartition(".")[2]}=' in script for name in outputs)


@pytest.mark.long
def test_a_damaged_branch_fails_the_job_after_its_reports_are_kept(
    action: dict[str, Any], program: Path, tmp_path: Path
) -> None:
    damaged, policy = copied(folder_of("main"), tmp_path / "release candidate"), tmp_path / "weights.yaml"
    os.truncate(damaged / "model.safetensors", 1_000_000)
    policy.write_text(POLICY)
    inputs = {
        "branch": f"{damaged}\r\n",
        "policy": str(policy),
        "options": "--family=sandbox\n--skip=kl\n--skip=evals\n\n--skip=canaries\n",
        "state": str(tmp_path / "state"),
        "command": str(program),
    }
    runner = Runner(action, tmp_path, inputs)
    assert runner.run() == [0, 1], runner.log
    report = Path(runner.outputs["steps.gate.outputs.report"])
    assert json.loads((report / "report.json").read_text())["report"]["verdict"] == "FAIL"
    assert (report / "junit.xml").exists()
    assert (tmp_path / "state" / "history.sqlite").exists()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_from_nothing_it_installs_itself_and_judges_names_on_the_hub(
    action: dict[str, Any], hub: Hub, llamas: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish("Org/Base", llamas[0])
    hub.publish("Org/Base-FP8", llamas[1])
    monkeypatch.setenv("RUNNER_TOOL_CACHE", str(tmp_path / "tools"))
    monkeypatch.setenv("TORCH_INDEX", "")
    (tmp_path / "mine.yaml").write_text(ONE_LANE)
    options = f"--corpus={REPOSITORY / 'data/corpus/general.yaml'}\n--skip=canaries\n--skip=evals\n--lane=freeform"
    named = {"branch": "Org/Base-FP8", "reference": "Org/Base", "policy": "mine.yaml", "suite": "sandbox"}
    runner = Runner(action, tmp_path, named | {"options": options})
    assert runner.run() == [0, 0], runner.log
    assert Path(runner.outputs["steps.gate.outputs.command"]).is_relative_to(tmp_path / "tools")


@pytest.mark.long
def test_hostile_inputs_are_only_ever_values(action: dict[str, Any], program: Path, tmp_path: Path) -> None:
    hostile = "$(touch owned) `touch owned`; touch owned\" ' || touch owned * ${HOME} \\ --json"
    told = Runner(action, tmp_path, {"branch": hostile, "state": str(tmp_path / "s"), "command": str(program)})
    assert told.run() == [0, 2]
    assert f"has a branch {hostile!r}" in told.log
    assert told.outputs["steps.gate.outputs.verdict"] == "USAGE"
    # all others at once, and lines that would be outputs, or options of another gate
    names = set(action["inputs"]) - {"command", "state", "fail", "artifact-name", "retention-days"}
    lines = f"{hostile}\nverdict=PASS\n--help\n"
    runner = Runner(action, tmp_path, {**dict.fromkeys(names, lines), "command": str(program)})
    assert runner.run() == [0, 4], runner.log  # --help ends with 0, and has judged nothing
    assert runner.outputs["steps.gate.outputs.verdict"] == "NOT_MEASURED"
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "PASS"), (3, "INCONCLUSIVE"), (4, "NOT_MEASURED"), (130, "INTERRUPTED")]
)
def test_each_code_is_the_jobs_own(action: dict[str, Any], tmp_path: Path, code: int, verdict: str) -> None:
    """Of the script alone: the program here only ends with that code."""
    ends = tmp_path / "ends"
    ends.write_text(f'#!/bin/sh\nfor last; do :; done\necho {{}} > "${{last#--out=}}/report.json"\nexit {code}\n')
    ends.chmod(0o755)
    runner = Runner(action, tmp_path, {"branch": "main", "command": str(ends)})
    assert runner.run() == [0, code]
    assert runner.outputs["steps.gate.outputs.verdict"] == verdict
    assert action["runs"]["steps"][-1]["if"] == "always() && inputs.fail != 'false'", "a mistyped value passes nothing"
    assert Runner(action, tmp_path, {"branch": "main", "command": "no-such-program"}).run() == [0, 2]


SLOW_TO_STOP = """#!/bin/bash
trap 'sleep 1; echo stopped; exit 143' TERM
echo begun
while :; do sleep 0.05; done
"""


def test_signals_while_the_gate_still_stops_end_no_wait_for_it(action: dict[str, Any], tmp_path: Path) -> None:
    program, output, log = (tmp_path / name for name in ("gate", "output", "log"))
    program.write_text(SLOW_TO_STOP)
    program.chmod(0o755)
    environment = {
        "Q36EVAL_ACTION_BRANCH": "main",
        "Q36EVAL_ACTION_COMMAND": str(program),
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_OUTPUT": str(output),
        "RUNNER_TEMP": str(tmp_path),
    }
    with log.open("w") as written:
        step = subprocess.Popen(
            ["bash", "-c", action["runs"]["steps"][1]["run"]],
            env={**os.environ, **environment},
            stdout=written,
            stderr=written,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    while "begun" not in log.read_text():
        assert step.poll() is None, log.read_text()
        time.sleep(0.01)
    for _ in range(3):
        step.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert step.wait() == 0
    assert "stopped" in log.read_text()
    assert "verdict=INTERRUPTED\nexit-code=143\n" in output.read_text()
