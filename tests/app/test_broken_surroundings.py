"""What breaks around a gate, done for real: limits, links, foreign code, full disks, signals, exchanged weights."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from q36eval.checkpoints import load_model
from q36eval.history import RunState
from q36eval.records import Verdict
from tests import commands, forked
from tests.app.sandbox_gates import REPOSITORY, copied
from tests.app.weights_gates import POLICY, flip, kl, runs, said
from tests.branches import folder_of
from tests.small_corpus import write_corpus

WEIGHTS = "model.safetensors"
COMMAND = [sys.executable, "-c", "from q36eval.app.cli import main; main()"]


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    """Options of a gate that measures KL on the forty shortest documents."""
    folder = REPOSITORY / "data" / "corpus" / "sandbox"
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
    corpus = write_corpus(tmp_path, [json.loads(line) for line in sorted(lines, key=len)[:40]])
    policy = tmp_path / "kl.yaml"
    policy.write_text(POLICY + kl(0.5))
    return ("--policy", str(policy), "--corpus", str(corpus), "--skip", "evals", "--skip", "canaries")


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


def on_a_disk(state: Path, options: str, filled: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command with its state on a file system of its own, which is filled first."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    state.mkdir()
    line = f'mount -t tmpfs -o {options} tmpfs {state} && {filled} && exec "$@"'
    command = ["unshare", "-rm", "bash", "-c", line, "bash", *COMMAND, *arguments]
    environment = os.environ | {"Q36EVAL_STATE": str(state), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "400"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_capture_that_does_not_fit_on_the_disk_is_refused_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "kl.yaml").write_text(POLICY + kl(0.5))
    options = ("--policy", str(tmp_path / "kl.yaml"), "--skip", "evals", "--skip", "canaries")
    done = on_a_disk(tmp_path / "state", "size=2m", "true", "gate", "--branch", "fp8-head", *options)
    assert done.returncode == 2
    assert "are free; make room" in said(done.stderr)
    assert "sampling" not in done.stderr


@pytest.mark.long
def test_weights_exchanged_after_a_kill_are_another_deployment(tmp_path: Path, small: tuple[str, ...]) -> None:
    branch, state, stderr = copied(folder_of("main"), tmp_path / "main"), tmp_path / "state", tmp_path / "stderr"
    gate = ("gate", "--branch", str(branch), *small)
    child = forked.start(*gate, state=state, stderr=stderr, before=os.setsid)
    child.until(lambda: child.has_said("measuring the branch"))
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    (run,) = runs(state)
    flip(branch / WEIGHTS)
    done = commands.q36eval(*gate, "--resume", run.id, state=state, code=2)
    assert "checkpoint_sha256" in said(done.stderr)


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
