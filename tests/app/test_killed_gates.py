"""A gate that is killed in any of its stages and given again ends where one that nobody killed does.

A gate has the same items, figures, captures and verdict whoever computes: no workers, one or two, on one node or two,
and after a worker, a node or the driver was killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Paths
from q36eval.history import History, RunState
from q36eval.kl.tokens import read_tokens
from q36eval.token_files import TOKENS, WORST
from tests.app.kill_gates import write_files
from tests.forked import KILLS, runs

REPOSITORY = Path(__file__).parents[2]
STAGES = ("sampling", "capturing the reference", "measuring the noise floor", "measuring the branch")
TIMES = ("seconds", "floor_sha256")
"""What differs from one time to the next: how long it took, and the hash of a file that says so."""


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def captured(state: Path) -> dict[str, Any]:
    """All that is kept of the reference."""
    root = Paths(REPOSITORY, state).captures
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {
        str(path.relative_to(root)): timeless(json.loads(path.read_bytes()))
        if path.name.startswith("floor-")
        else path.read_bytes()
        for path in files
    }


def judged(state: Path) -> tuple[Any, ...]:
    """The items, figures, scored tokens and verdict of the one run there."""
    history = History.open(Paths(REPOSITORY, state).history)
    (run,) = history.list_runs()
    assert run.state is RunState.FINISHED
    items = {(each.probe, each.item_key): timeless(each.model_dump(mode="json")) for each in history.items(run.id)}
    figures = {each.key: each.value for each in history.measurements(run.id)}
    place = Paths(REPOSITORY, state).tokens(run.id)
    tokens = read_tokens(place / TOKENS), (place / WORST).read_bytes()
    criteria = [(each.id, each.verdict, each.value) for each in run.report.criteria]
    return items, figures, tokens, criteria, run.report.verdict, run.report.failures


@pytest.mark.long
def test_a_gate_killed_in_any_stage_ends_where_one_that_nobody_killed_does(tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_gates.py")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(script), str(tmp_path), str(KILLS // 5), "19"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for stage in STAGES:
        assert stage in done.stdout, "a stage that was to be killed in did not come"
    whole = captured(tmp_path / "whole"), judged(tmp_path / "whole")
    assert whole == (captured(tmp_path / "another"), judged(tmp_path / "another"))
    places = sorted(tmp_path.glob("killed*"))
    assert len(places) >= len(STAGES)
    for place in places:
        assert (captured(place), judged(place)) == whole, f"{place.name}\n{done.stdout}"


# -- whoever computes: workers and nodes, and after one was killed

SCRIPT = Path(__file__).with_name("worker_gates.py")
LONGEST_S = 300


@pytest.fixture(scope="module")
def code() -> Iterator[None]:
    """Nodes that a test starts import this code."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="module")
def files(code: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def alone(files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    state = tmp_path_factory.mktemp("alone")
    finish(begin(state, files, 0))
    return captured(state), judged(state)


def begin(state: Path, files: Path, workers: int, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPT), str(state), str(files), str(workers), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: "subprocess.Popen[str]") -> None:
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, said


def workers_of(process: "subprocess.Popen[str]", file: Path) -> list[int]:
    """The workers' process ids, once the gate is at the branch."""
    until = time.monotonic() + LONGEST_S
    while not file.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)
    return [int(line) for line in file.read_text().split()]


def spread(state: Path) -> list[dict[str, Any]]:
    history = History.open(Paths(REPOSITORY, state).history)
    (run,) = history.list_runs()
    return list(run.provenance["workers"])


@pytest.mark.long
def test_two_workers_one_of_them_killed(files: Path, alone: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "pids"
    process = begin(tmp_path / "state", files, 2, "--kill", str(file))
    os.kill(workers_of(process, file)[0], signal.SIGKILL)
    (tmp_path / "go").touch()
    finish(process)
    assert (captured(tmp_path / "state"), judged(tmp_path / "state")) == alone
    assert [each["workers"] for each in spread(tmp_path / "state")] == [2]


@pytest.mark.long
def test_the_driver_killed_and_the_run_resumed_by_another_number(
    files: Path, alone: tuple[Any, ...], tmp_path: Path
) -> None:
    file, state = tmp_path / "pids", tmp_path / "state"
    process = begin(state, files, 2, "--kill", str(file))
    pids = workers_of(process, file)
    process.kill()
    process.communicate()
    history = History.open(Paths(REPOSITORY, state).history)
    assert [run.state for run in history.list_runs()] == [RunState.RUNNING]
    until = time.monotonic() + LONGEST_S
    while any(map(runs, pids)):
        assert time.monotonic() < until, "workers outlive the command that they worked for"
        time.sleep(0.1)
    finish(begin(state, files, 1))
    assert (captured(state), judged(state)) == alone
    assert [each["workers"] for each in spread(state)] == [2, 1]


@pytest.mark.long
def test_two_nodes_one_of_them_killed(files: Path, alone: tuple[Any, ...], tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    # the driver's own node has no core to lend, so that each worker is on a node of its own
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        file = tmp_path / "pids"
        process = begin(tmp_path / "state", files, 2, cluster.address, "--kill", str(file))
        assert len(workers_of(process, file)) == 2
        cluster.remove_node(nodes[1], allow_graceful=False)
        (tmp_path / "go").touch()
        finish(process)
    finally:
        cluster.shutdown()
    assert (captured(tmp_path / "state"), judged(tmp_path / "state")) == alone
