"""What breaks around a gate, done for real: limits, links, foreign code, signals."""

import json
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from q36eval.checkpoints import load_model
from q36eval.history import RunState
from q36eval.records import Verdict
from tests import commands, forked
from tests.app.sandbox_gates import copied
from tests.app.weights_gates import runs, said
from tests.branches import folder_of

WEIGHTS = "model.safetensors"


def test_a_limit_on_open_files_is_no_fault_of_the_branch(tmp_path: Path, weights: tuple[str, ...]) -> None:
    branch, state, stderr = copied(folder_of("main"), tmp_path / "main"), tmp_path / "state", tmp_path / "stderr"
    for number in range(100):
        (branch / f"model-{number:05}-of-00100.safetensors").write_bytes(b"")

    def limit() -> None:
        taken = {int(name) for name in os.listdir("/proc/self/fd")}
        most = [number for number in range(1000) if number not in taken][48]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    child = forked.start("gate", "--branch", str(branch), *weights, state=state, stderr=stderr, before=limit)
    assert child.wait() == 4, stderr.read_text()
    (run,) = runs(state)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert "Too many open files" in run.report.criteria[0].reason


def test_a_policy_of_billions_of_values_is_refused_within_little_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    policy, stderr = tmp_path / "policy.yaml", tmp_path / "stderr"
    policy.write_text("\n".join([*lines, "name: *a11", "criteria: *a11"]) + "\n")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2**30
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (most, most))
    gate = ("gate", "--branch", "main", "--policy", str(policy))
    assert forked.start(*gate, state=tmp_path / "state", stderr=stderr, before=limit).wait() == 2
    assert "policy.yaml" in said(stderr.read_text())


def test_code_that_a_branch_brings_is_never_run(tmp_path: Path, weights: tuple[str, ...]) -> None:
    branch, ran = copied(folder_of("main"), tmp_path / "main"), tmp_path / "ran"
    (branch / "modeling.py").write_text(f"open({str(ran)!r}, 'w').write('ran')\n")
    config = json.loads((branch / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"}
    (branch / "config.json").write_text(json.dumps(config))
    assert commands.q36eval("gate", "--branch", str(branch), *weights, state=tmp_path / "state").returncode == 0
    load_model(branch)
    assert not ran.exists()


def test_a_pickle_in_place_of_the_weights_is_never_unpickled(tmp_path: Path, weights: tuple[str, ...]) -> None:
    branch, ran = copied(folder_of("main"), tmp_path / "main"), tmp_path / "ran"
    (branch / WEIGHTS).unlink()
    (branch / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {ran}'\ntR.".encode())
    assert commands.q36eval("gate", "--branch", str(branch), *weights, state=tmp_path / "state").returncode == 1
    assert not ran.exists()


@pytest.mark.parametrize("option", ["--branch", "--policy", "--waivers-from", "--out", "--suite"])
def test_a_link_to_itself_is_one_sentence(option: str, tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    branch = () if option == "--branch" else ("--branch", "main")
    done = commands.q36eval("gate", *branch, "--skip", "canaries", option, str(loop), state=tmp_path / "state", code=2)
    assert "loop" in said(done.stderr)


def test_sigterm_in_the_second_of_two_branches_costs_the_second_alone(tmp_path: Path, weights: tuple[str, ...]) -> None:
    state, stderr, out = tmp_path / "state", tmp_path / "stderr", tmp_path / "out"
    report, waits = out / "bf16" / "report.json", tmp_path / "waits"

    def wait() -> None:
        if report.exists():
            waits.touch()
            while True:
                time.sleep(0.01)

    both = ("gate", "--branch", "bf16", "--branch", "main", *weights, "--out", str(out))
    child = forked.start(*both, state=state, stderr=stderr, before=partial(forked.inspecting_after, wait))
    child.until(waits.exists)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143
    second, first = runs(state)
    assert (second.state, second.verdict, first.verdict) == (RunState.INTERRUPTED, None, Verdict.PASS)
    assert json.loads(report.read_text())["report"]["verdict"] == "PASS"
    assert not list((out / "main").iterdir())
    assert f"--resume {second.id}" in said(stderr.read_text())
