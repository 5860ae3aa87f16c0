"""Where a branch stands: kept when a run ends, a verdict changes or somebody blesses, else found anew."""

from datetime import date
from pathlib import Path

import pytest

import q36eval.run.drift as drifting
from q36eval.app.reviewing.redecision import decide_again
from q36eval.gate import Waiver
from q36eval.history import History, KeptDrift
from q36eval.run.drift import drift_of, followed, keep_drifts, read_kept, standing_drift
from tests import commands
from tests.app.judged_runs import judge_run, open_history
from tests.q36eval.gate.evidence import small_policy

DAY = date(2026, 3, 1)
MAIN = ("sandbox", "main")


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Six runs of which the first is blessed and the last three are worse."""
    opened = open_history(tmp_path)
    runs = [judge_run(opened, broken, DAY) for broken in (2, 2, 2, 60, 60, 60)]
    opened.bless(runs[0].id, "eva", "good")
    return opened


def is_kept(history: History) -> bool:
    return read_kept(history.fingerprints(*MAIN)[MAIN], history.kept_drifts(*MAIN).get(MAIN)) is not None


def test_what_is_kept_is_what_would_be_found_anew(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    anew = standing_drift(history, *MAIN)
    assert (anew, is_kept(history)) == (drift_of(history, *MAIN).without_points(), False)
    keep_drifts(history)
    with monkeypatch.context() as patched:
        patched.setattr(drifting, "branch_drift", None)
        assert standing_drift(history, *MAIN) == anew
        keep_drifts(history)  # nothing to do
        patched.setattr(drifting, "FINDINGS_VERSION", 0)
        assert not is_kept(history), "what another version kept is not read"
    kept = history.kept_drifts()[MAIN]
    for damaged in ("{", "{}", "", kept.found.replace('"runs":6', '"runs":null')):
        history.keep_drift(*MAIN, KeptDrift(stand=kept.stand, found=damaged))
        assert standing_drift(history, *MAIN) == anew


def test_few_metrics_are_followed_as_among_all(history: History) -> None:
    every = drift_of(history, *MAIN)
    key = "canaries.failure_rate[tools]"
    one = followed(history, standing_drift(history, *MAIN), [key])
    assert one == [metric for metric in every.metrics if metric.key == key]
    assert one[0].points
    assert followed(history, every, []) == []


@pytest.mark.long
def test_whatever_changes_where_a_branch_stands_keeps_it_anew(history: History, tmp_path: Path) -> None:
    newest = history.get_run("latest")
    assert commands.q36eval("drift", "--branch", "main", state=tmp_path).returncode == 1
    assert is_kept(history)
    judge_run(history, 60, DAY)
    assert not is_kept(history)
    words = ("--owner", "eva", "--reason", "known")
    assert commands.q36eval("review", "bless", newest.id, *words, state=tmp_path).returncode == 0
    assert is_kept(history)
    assert standing_drift(history, *MAIN).blessed_run_id == newest.id
    waiver = Waiver(criterion="tools", owner="eva", reason="known", expires=date(2026, 4, 1))
    history.add_waiver(*MAIN, waiver)
    before = history.fingerprints()
    options = {"policy": small_policy(), "on": DAY, "require_sign_off": False}
    decide_again(history, newest, family="sandbox", branch="main", **options)
    assert history.fingerprints() != before
    assert is_kept(history)


def test_what_was_found_while_somebody_wrote_is_not_kept_under_the_state_before(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That state may come back, and would then be told what is true of another."""
    runs = [run.id for run in history.summaries()]
    history.bless(runs[0], "eva", "good")
    standing = drifting._standing

    def slowly(*of: object) -> object:
        history.bless(runs[-1], "eva", "by mistake")
        return standing(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(drifting, "_standing", slowly)
    keep_drifts(history)
    history.bless(runs[0], "eva", "good after all")
    assert history.kept_drifts() == {}


def test_runs_that_never_ended_do_not_hide_the_newest_verdict(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no fingerprint: what is kept would be of another set of metrics than what is found."""
    monkeypatch.setattr(drifting, "RECENT", 2)
    before = drifting.judged_keys(history, *MAIN)
    for _ in range(3):
        history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    assert before
    assert drifting.judged_keys(history, *MAIN) == before
