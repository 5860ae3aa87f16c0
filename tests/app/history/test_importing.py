"""An import decides each run again from its evidence; what people decided of it does not travel."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from q36eval.app.reviewing.redecision import decide_again
from q36eval.history import History, RunRecord
from q36eval.history.decisions import sign
from q36eval.records import Verdict
from tests import commands
from tests.app.history.filled import DAY, fill
from tests.app.history.test_moving import edited, exported, imported
from tests.app.judged_runs import items_of, judge_run, open_history

pytestmark = pytest.mark.long


def test_what_people_decided_stays_where_they_decided_it(tmp_path: Path) -> None:
    """A FAIL that a waiver turned to PASS, blessed and signed, is a FAIL elsewhere; the PASS is kept as a decision."""
    here, there = tmp_path / "here", tmp_path / "there"
    _, run = fill(here)
    assert run.verdict is Verdict.PASS
    other = open_history(there)
    came = imported(there, exported(here))
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
    (sentence,) = imported(there, exported(here)).says
    assert "INCONCLUSIVE, awaiting sign-off (signatures of another history do not count here)" in sentence
    other = open_history(there)
    assert again(other, run.id).verdict is Verdict.INCONCLUSIVE
    sign(other, other.get_run(run.id), "eva", "read it here")
    assert again(other, run.id).verdict is Verdict.PASS


def again(history: History, run_id: str) -> RunRecord:
    """The run decided as of today, for which a sign-off is required."""
    run = history.get_run(run_id)
    return decide_again(history, run, family="sandbox", branch="main", policy=None, on=datetime.now(UTC).date())


def test_a_report_that_its_evidence_does_not_give_is_told_and_not_kept(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    good = judge_run(history, 0, DAY)
    bad = judge_run(history, 80, DAY, items=items_of(80))
    passing = json.loads(good.report.model_dump_json())
    file = exported(here, bad.id)
    file.write_bytes(edited(file.read_bytes(), lambda whole: whole["run"].update(report=passing, verdict="PASS")))
    (sentence,) = imported(there, file).says
    why = "its report is not of its evidence"
    assert sentence == f"Run {bad.id}: the archive says PASS, its evidence gives FAIL ({why}); FAIL is kept."
    assert [run.verdict for run in open_history(there).summaries()] == [Verdict.FAIL]
    assert commands.q36eval("history", "show", bad.id, "--replay", state=there).returncode == 0
