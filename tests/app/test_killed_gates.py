"""A gate that is killed in any of its stages and given again ends where one that nobody killed does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Paths
from q36eval.history import History, RunState
from q36eval.kl.tokens import read_tokens
from q36eval.token_files import TOKENS, WORST
from tests.kills import KILLS

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
    assert run.report is not None
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
