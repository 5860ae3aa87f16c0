"""What a person can mend is one sentence with its code and the names there are; no run is begun, nothing written."""

import shlex
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import commands
from tests.app.judged_runs import judge_run, open_history

ROWS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
WRITTEN = "--branch main --owner eva --reason 'known, fixed in the next build'"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of one run, which failed."""
    folder = tmp_path_factory.mktemp("state")
    judge_run(open_history(folder), 80, date(2026, 3, 1))
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["command"])
def test_what_a_person_can_mend_is_one_sentence(
    row: dict[str, Any], state: Path, request: pytest.FixtureRequest
) -> None:
    if row.get("elsewhere"):
        request.getfixturevalue("elsewhere")
    history = open_history(state)
    (run,) = history.summaries()
    soon = datetime.now(UTC).date() + timedelta(days=30)
    command = row["command"].format(run=run.id, empty=state / "empty", soon=soon, written=WRITTEN)
    done = commands.q36eval(*shlex.split(command), state=state)
    assert (done.returncode, done.stdout, commands.code_of(done)) == (row.get("exit", 2), "", row["code"])
    assert [line.startswith("q36eval: ") for line in done.stderr.splitlines()].count(True) == 1
    assert [name for name in row["names"] if name not in done.stderr] == [], done.stderr
    assert ([one.id for one in history.summaries()], history.waiver_records()) == ([run.id], [])
