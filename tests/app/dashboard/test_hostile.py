"""Names that somebody else chose: what is to be copied into a shell is quoted, and nothing of them is markup."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from written_history import HOSTILE

from q36eval.history import History, RunProgress

Visit = Callable[..., Any]
BRANCH = "fp8; touch /tmp/owned"


@pytest.fixture
def running(tmp_path: Path) -> tuple[Path, str]:
    """A history of one run that is going on: of a hostile branch, in a stage of a hostile name."""
    path = tmp_path / "history.sqlite"
    history = History.open(path)
    run = history.start_run(family="sandbox", branch=BRANCH, identity=None, reference_identity=None)
    history.set_progress(RunProgress(run_id=run.id, stage=HOSTILE, done=3, total=9, at=datetime.now(UTC)))
    history.close()
    return path, run.id


@pytest.mark.long
@pytest.mark.parametrize("page", ["review", "kl", "evals", "canaries"])
def test_a_command_to_be_copied_runs_nothing_else(visit: Visit, running: tuple[Path, str], page: str) -> None:
    path, run = running
    commands = [one.value for one in visit(path, page, run=run).code if one.value.startswith("q36eval ")]
    assert commands
    assert all(f"--branch '{BRANCH}'" in command for command in commands)


def test_the_stage_of_a_run_is_no_markup(visit: Visit, running: tuple[Path, str]) -> None:
    path, run = running
    app = visit(path, "run", run=run)
    assert any("<script>alert('owned')</script>" in one.value for one in app.text)
    assert "<script>" not in "".join(str(one.proto) for one in app.get("progress"))
