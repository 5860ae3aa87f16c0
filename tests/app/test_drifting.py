"""Where a branch stands: the metrics that its verdict rests on, and what is found of few of them."""

from datetime import date
from pathlib import Path

import pytest

import q36eval.run.drift as drifting
from q36eval.drift import DriftState
from q36eval.history import History
from q36eval.run.drift import drift_of, followed, standing_drift
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


def test_few_metrics_are_followed_as_among_all(history: History) -> None:
    """Of what was not asked nothing is said."""
    every = drift_of(history, *MAIN)
    key = "canaries.failure_rate[tools]"
    one = followed(history, standing_drift(history, *MAIN), [key])
    assert one == [metric for metric in every.metrics if metric.key == key]
    assert one[0].points
    assert followed(history, every, []) == []
    found = drift_of(history, *MAIN, containing="failure")
    assert (found.watched, found.never_measured) == (1, ())
    assert "never measured" not in found.statement


def test_runs_that_never_ended_do_not_hide_the_newest_verdict(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drifting, "RECENT", 2)
    before = drifting.judged_keys(history, *MAIN)
    for _ in range(3):
        history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    assert before
    assert drifting.judged_keys(history, *MAIN) == before


def test_a_newest_run_that_did_not_measure_it_is_not_stable(history: History) -> None:
    run = history.get_run("latest")
    history.bless(run.id, owner="eva", reason="good")
    history.update_run(run.id, suites={"canaries": "s"})
    assert drift_of(history, *MAIN, containing="tools").state is DriftState.STABLE
    suites, policy = {"canaries": "s"}, small_policy()
    known = {"identity": run.identity, "reference_identity": run.reference_identity}
    crashed = history.start_run(family="sandbox", branch="main", policy=policy, suites=suites, **known)
    history.finish_run(crashed.id, run.report)
    assert drift_of(history, *MAIN, containing="tools").state is DriftState.INCOMPARABLE
