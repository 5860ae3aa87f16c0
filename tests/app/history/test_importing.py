"""An import decides each run again from its evidence; what people decided of it does not travel."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.history.import_export import export, take_in
from q36eval.app.reviewing.redecision import decide_again
from q36eval.config import Paths
from q36eval.history import History, RunRecord
from q36eval.history.decisions import sign
from q36eval.records import Verdict
from tests import commands
from tests.app.history.filled import DAY, fill
from tests.app.history.test_moving import changed, editing
from tests.app.judged_runs import items_of, judge_run, open_history

pytestmark = pytest.mark.long


def archive_of(state: Path, history: History, run: RunRecord) -> Path:
    file = state / "runs.zip"
    export(history, Paths(state, state), [run.id], file, lambda _: None)
    return file


def edited(file: Path, part: str, edit: Callable[[Any], object]) -> Path:
    """The archive with the JSON of a file in it changed."""

    def rewritten(content: bytes) -> bytes:
        lines = [json.loads(line) for line in content.splitlines()]
        edit(lines)
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    file.write_bytes(changed(file.read_bytes(), editing(part, rewritten)))
    return file


def test_what_people_decided_stays_where_they_decided_it(tmp_path: Path) -> None:
    """A FAIL that a waiver turned to PASS, blessed and signed, is a FAIL elsewhere; the PASS is kept as a decision."""
    here, there = tmp_path / "here", tmp_path / "there"
    history, run = fill(here)
    assert run.verdict is Verdict.PASS
    other = open_history(there)
    came = take_in(other, there, archive_of(here, history, run))
    arrived = other.get_run(run.id)
    assert (arrived.verdict, arrived.imported is not None) == (Verdict.FAIL, True)
    assert [one.report.verdict for one in other.earlier_decisions(run.id)][-1] is Verdict.PASS
    assert "waivers of another history do not count here" in came.says[0]
    assert (other.waiver_records(), other.sign_offs(run.id), other.blessings_of_run(run.id)) == ([], [], [])
    shown = commands.q36eval("history", "show", run.id, state=there).stdout
    assert "from another history, and decided here by its evidence" in shown
    assert " imported" in commands.q36eval("history", "list", state=there).stdout


def test_a_signature_under_another_history_s_run_is_given_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 0, DAY, require_sign_off=True, items=items_of(0))
    sign(history, run, "mallory", "trust me")
    run = again(history, run.id)
    assert run.verdict is Verdict.PASS
    other = open_history(there)
    (sentence,) = take_in(other, there, archive_of(here, history, run)).says
    assert "INCONCLUSIVE, awaiting sign-off (signatures of another history do not count here)" in sentence
    assert again(other, run.id).verdict is Verdict.INCONCLUSIVE
    sign(other, other.get_run(run.id), "eva", "read it here")
    assert again(other, run.id).verdict is Verdict.PASS


def again(history: History, run_id: str) -> RunRecord:
    """The run decided as of today, for which a sign-off is required."""
    run = history.get_run(run_id)
    return decide_again(history, run, family="sandbox", branch="main", policy=None, on=datetime.now(UTC).date())


REWRITTEN: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "a run of 2099": (
        "run.json",
        lambda lines: lines[0].update(started="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "an end of 2099": (
        "run.json",
        lambda lines: lines[0].update(finished="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "a signature": ("about.json", lambda lines: lines[0].update(sign_offs=[]), "cannot be read (at sign_offs"),
    "a verdict without an end": ("run.json", lambda lines: lines[0].update(state="running"), "and is running"),
    "a verdict without a report": ("run.json", lambda lines: lines[0].update(report=None), "and no report"),
    "a verdict without a policy": ("run.json", lambda lines: lines[0].update(policy=None), "it only measured"),
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = tmp_path_factory.mktemp("state")
    return archive_of(state, *fill(state)).read_bytes()


@pytest.mark.parametrize("what", REWRITTEN)
def test_what_was_rewritten_is_refused_in_one_sentence(archive: bytes, tmp_path: Path, what: str) -> None:
    part, edit, needle = REWRITTEN[what]
    file = tmp_path / "in.zip"
    file.write_bytes(archive)
    done = commands.q36eval("history", "import", str(edited(file, part, edit)), state=tmp_path / "state")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert needle in done.stderr
    assert open_history(tmp_path / "state").summaries() == []


def test_a_report_that_its_evidence_does_not_give_is_told_and_not_kept(tmp_path: Path) -> None:
    history = open_history(tmp_path / "here")
    good = judge_run(history, 0, DAY)
    bad = judge_run(history, 80, DAY, items=items_of(80))
    assert good.report is not None
    passing = json.loads(good.report.model_dump_json())
    file = archive_of(tmp_path, history, bad)
    edited(file, "run.json", lambda lines: lines[0].update(report=passing, verdict="PASS"))
    other = open_history(tmp_path / "there")
    (sentence,) = take_in(other, tmp_path / "there", file).says
    why = "its report is not of its evidence"
    assert sentence == f"Run {bad.id}: the archive says PASS, its evidence gives FAIL ({why}); FAIL is kept."
    assert [run.verdict for run in other.summaries()] == [Verdict.FAIL]
    assert commands.q36eval("history", "show", bad.id, "--replay", state=tmp_path / "there").returncode == 0
