"""A history that goes away under a running gate."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints import inspection
from tests import commands
from tests.app.judged_runs import open_history

pytestmark = pytest.mark.long


def test_a_gate_whose_history_goes_away_ends_without_a_verdict(
    tmp_path: Path, weights: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, whole = tmp_path / "state", inspection.inspect_checkpoint
    open_history(state).close()

    def goes_away(*given: Any, **options: Any) -> Any:
        for file in state.glob("history.sqlite*"):
            file.unlink()
        return whole(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(inspection, "inspect_checkpoint", goes_away)
        done = commands.q36eval("gate", "--branch", "fp8-head", *weights, state=state)
    assert (done.returncode, done.stderr.count("q36eval: ")) == (4, 1), done.stderr
    assert "[history-deleted]" in done.stderr
    assert "is lost with it" in done.stderr
    assert "--resume" not in done.stderr
    assert open_history(state).summaries() == []
