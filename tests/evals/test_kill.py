"""Runs that are killed and resumed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from q36eval.gate.integrity import ENGINE_DRIFT
from q36eval.history import History
from q36eval.records import ItemOutcome
from tests.evals.small_suite import ROOT
from tests.kills import KILLS


def outcomes(history: Path) -> dict[str, dict[str, Any]]:
    """What was found, by item; how long it took is no part of it."""
    opened = History.open(history)
    (run,) = opened.list_runs()
    found = {outcome.item_key: _timeless(outcome) for outcome in opened.items(run.id)}
    opened.close()
    return found


def drift(history: Path) -> float:
    """How many of the first items came out otherwise at the end, where the process that answered them may be dead."""
    opened = History.open(history)
    (run,) = opened.list_runs()
    (found,) = (m.value for m in opened.measurements(run.id) if m.metric == ENGINE_DRIFT)
    opened.close()
    return found


def _timeless(outcome: ItemOutcome) -> dict[str, Any]:
    plain = outcome.model_dump(mode="json")
    plain["branch"]["detail"].pop("seconds")
    return plain


@pytest.mark.long
def test_a_run_killed_at_random_moments_resumes_to_the_same_items_none_asked_twice(tmp_path: Path) -> None:
    """The real model in forked workers, and a rule that stops one task early; see kill_evals.py."""
    script = Path(__file__).with_name("kill_evals.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path), str(KILLS), "11"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole = outcomes(tmp_path / "whole.sqlite")
    assert whole == outcomes(tmp_path / "another.sqlite")
    asked_of = {name: sum(found["group"] == name for found in whole.values()) for name in ("mmlu", "perplexity")}
    assert 15 <= asked_of["mmlu"] < 45, "one task must have been settled early for this to say anything about it"
    assert asked_of["perplexity"] == 4
    for number in range(KILLS):
        place = tmp_path / f"run{number}"
        asked = place.with_suffix(".asked").read_text().split()
        assert len(asked) == len(set(asked)), "an item was asked twice"
        assert outcomes(place.with_suffix(".sqlite")) == whole
        assert drift(place.with_suffix(".sqlite")) == 0.0
    interrupted = sum(0 < int(line.split()[-2]) < len(whole) for line in done.stdout.splitlines())
    assert interrupted >= KILLS // 2, done.stdout
