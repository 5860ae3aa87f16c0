"""What a page remembers of a branch is known by the branch's fingerprint."""

from datetime import date

import pytest

from q36eval.history import History
from q36eval.history.decisions import circumstances_on, decided, evidence_of
from tests.app.judged_runs import STAGES, judge_run
from tests.q36eval.gate.evidence import small_policy

DAY = date(2026, 3, 1)
MAIN = ("sandbox", "main")


@pytest.mark.long
def test_a_fingerprint_is_another_one_with_every_run_verdict_and_blessing(history: History) -> None:
    assert history.fingerprints() == {}
    seen = []

    def look() -> None:
        found = history.fingerprints()
        assert {MAIN: found[MAIN]} == history.fingerprints(*MAIN)
        seen.append(found[MAIN])

    run = judge_run(history, 2, DAY)
    look()
    unfinished = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    judge_run(history, 2, DAY, branch="other")
    assert history.fingerprints()[MAIN] == seen[0], "what changes nothing of the branch's finished runs"
    history.finish_run(unfinished.id)
    look()
    circumstances = circumstances_on(history, run, DAY, require_sign_off=True)
    report = decided(small_policy(), evidence_of(history, run, circumstances, STAGES), circumstances)
    history.decide_again(run.id, report, circumstances)
    look()
    for reason in ("good", "still good"):
        history.bless(run.id, "eva", reason)
    look()
    other = judge_run(history, 2, DAY)
    history.bless(other.id, "eva", "better")
    look()
    history.revoke_blessing(other.id, "eva", "wrong build")
    look()
    history.bless(judge_run(history, 2, DAY, branch="other").id, "eva", "another branch's")
    assert history.fingerprints()[MAIN] == seen[-1]
    history.delete_run(unfinished.id)
    look()
    assert len(set(seen)) == len(seen)
