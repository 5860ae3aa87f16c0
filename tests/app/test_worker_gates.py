"""A gate has the same items, figures, captures and verdict whoever computes: no workers, one or two, on one node or
two, and after a worker, a node or the driver was killed.
"""

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
from tests.app.kill_gates import write_files
from tests.app.test_killed_gates import captured, judged
from tests.kills import runs

pytest.importorskip("ray")
pytestmark = pytest.mark.long
REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("worker_gates.py")
LONGEST_S = 300


@pytest.fixture(scope="module", autouse=True)
def code() -> Iterator[None]:
    """Nodes that a test starts import this code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_two_workers_one_of_them_killed(files: Path, alone: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "pids"
    process = begin(tmp_path / "state", files, 2, "--kill", str(file))
    os.kill(workers_of(process, file)[0], signal.SIGKILL)
    (tmp_path / "go").touch()
    finish(process)
    assert (captured(tmp_path / "state"), judged(tmp_path / "state")) == alone
    assert [each["workers"] for each in spread(tmp_path / "state")] == [2]


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
