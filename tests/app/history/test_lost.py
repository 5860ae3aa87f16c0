"""A history that goes away under a running gate, and one that another process holds."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints import inspection
from q36eval.history import History, RunState
from tests import commands
from tests.app.judged_runs import open_history

pytestmark = pytest.mark.long


@pytest.mark.parametrize("what", ["deleted", "replaced", "an older copy"])
def test_a_gate_whose_history_goes_away_says_so_and_keeps_what_it_measured(
    tmp_path: Path, weights: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    state, whole = tmp_path / "state", inspection.inspect_checkpoint
    arguments = ("gate", "--branch", "fp8-head", *weights)
    open_history(state).close()
    history = state / "history.sqlite"
    History.open(tmp_path / "other.sqlite").close()
    older = history.read_bytes()

    def goes_away(*given: Any, **options: Any) -> Any:
        for beside in state.glob("history.sqlite-*"):
            beside.unlink()
        history.unlink()
        if what != "deleted":
            history.write_bytes(older if what == "an older copy" else (tmp_path / "other.sqlite").read_bytes())
        return whole(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(inspection, "inspect_checkpoint", goes_away)
        done = commands.q36eval(*arguments, state=state)
    assert (done.returncode, done.stderr.count("q36eval: ")) == (4, 1), done.stderr
    assert ("was deleted" if what == "deleted" else "was replaced by another") in done.stderr
    (archive,) = (state / "rescued").iterdir()
    assert f"q36eval history import {archive}" in done.stderr
    assert commands.q36eval("history", "import", str(archive), state=state).returncode == 0
    (run,) = open_history(state).summaries()
    assert (run.state, f"--resume {run.id}" in done.stderr) == (RunState.INTERRUPTED, True)
    resumed = commands.q36eval(*arguments, "--resume", run.id, state=state)
    assert resumed.returncode == 0, resumed.stderr


def test_a_run_notes_its_history_before_it_leaves_anything_that_another_history_s_gc_could_take(
    tmp_path: Path, weights: tuple[str, ...]
) -> None:
    """Interrupted before it kept a file, it was of no run that `gc` of the state's own history knew of."""
    state, own = tmp_path / "state", tmp_path / "team.sqlite"
    done = commands.q36eval("gate", "--branch", "fp8-head", *weights, state=state, Q36EVAL_HISTORY=str(own))
    assert done.returncode == 0, done.stderr
    assert (state / "artifacts" / "histories.txt").read_text().startswith(f"{own}\t")
