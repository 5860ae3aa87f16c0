"""Which of a blessed run's measurements another run may be held against."""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import q36eval.run.drift as drifting
from q36eval.config import Family, Paths
from q36eval.drift import DriftState
from q36eval.gate import Circumstances, Policy
from q36eval.history import History
from q36eval.history.decisions import blessed_beside, decided, evidence_of
from q36eval.records import DeploymentIdentity, Measurement, ProbeName, Verdict
from q36eval.run.drift import drift_of, followed, standing_drift
from q36eval.run.measure import stopping_rule
from q36eval.run.request import Request, Target
from tests import commands
from tests.app.judged_runs import IDENTITY, judge_run, open_history
from tests.q36eval.gate.evidence import accuracy, census, divergence, named, small_policy

FAMILY = Family.load(Paths.default().families / "sandbox.yaml")
SUITES = {"evals": "suite-1", "kl": "corpus-1"}
OTHER = IDENTITY.model_copy(update={"checkpoint_sha256": "other"})
NAMES = [f"item-{number}" for number in range(200)]


def evidence() -> list[Measurement]:
    return [
        named(accuracy([1] * 200, [1] * 200), NAMES),
        divergence([1e-5] * 60),
        census(ProbeName.WEIGHTS, "integrity_faults", 0),
    ]


def held_against() -> Policy:
    mmlu, _, intact = small_policy().criteria
    margin = mmlu.margin.model_copy(update={"against": "blessed"})
    return small_policy(criteria=(mmlu.model_copy(update={"margin": margin}), intact))


def measured_run(
    history: History,
    reference: DeploymentIdentity | None = IDENTITY,
    suites: Mapping[str, str] = SUITES,
    exhaustive: bool = False,
) -> str:
    run = history.start_run(
        family="sandbox",
        branch="main",
        identity=IDENTITY,
        reference_identity=reference,
        policy=held_against(),
        suites=suites,
        provenance={"exhaustive": exhaustive},
    )
    history.add_measurements(run.id, evidence())
    return run.id


@pytest.mark.long
@pytest.mark.parametrize(
    ("then", "verdict", "why"),
    [
        ({}, Verdict.PASS, ""),
        ({"reference": OTHER}, Verdict.INCONCLUSIVE, "against another reference (checkpoint_sha256)"),
        ({"reference": None}, Verdict.INCONCLUSIVE, "against another reference (unknown)"),
        ({"suites": SUITES | {"evals": "suite-0"}}, Verdict.INCONCLUSIVE, "evaluated another suite of evals"),
        ({"suites": SUITES | {"kl": "corpus-0"}}, Verdict.PASS, ""),
    ],
)
def test_a_blessed_run_of_another_reference_or_suite_is_not_compared_with(
    tmp_path: Path, then: dict[str, Any], verdict: Verdict, why: str
) -> None:
    history = open_history(tmp_path)
    now, blessed = measured_run(history), measured_run(history, **then)
    run = history.get_run(now)
    circumstances = Circumstances(on=date(2026, 3, 1), blessed_run=blessed)
    report = decided(held_against(), evidence_of(history, run, circumstances), circumstances)
    (mmlu,) = (result for result in report.criteria if result.id == "mmlu")
    assert report.verdict is verdict
    assert why in mmlu.reason


def test_what_stops_the_asking_looks_at_the_same_as_the_decision(history: History, tmp_path: Path) -> None:
    circumstances = Circumstances(on=date(2026, 3, 1), blessed_run=measured_run(history, suites=SUITES | {"kl": "0"}))
    run = history.get_run(measured_run(history))
    request = Request(FAMILY, Target("main", tmp_path), None, "sandbox", held_against())
    rule = stopping_rule(request, history, run, IDENTITY, circumstances)
    assert {measurement.probe for measurement in rule.blessed} == {ProbeName.EVALS, ProbeName.WEIGHTS}
    assert rule.blessed == blessed_beside(history, circumstances.blessed_run, SUITES, IDENTITY).measurements


def test_a_run_that_began_exhaustively_is_resumed_so(history: History, tmp_path: Path) -> None:
    """Its record, and the model card made from it, say that every item was asked."""
    request = Request(FAMILY, Target("main", tmp_path), None, "sandbox", held_against())
    rules = [
        stopping_rule(request, history, history.get_run(run), IDENTITY, Circumstances(on=date(2026, 3, 1)))
        for run in (measured_run(history), measured_run(history, exhaustive=True))
    ]
    assert [rule is None for rule in rules] == [False, True]


# -- where a branch stands: the metrics that its verdict rests on, and what `drift` says


DAY = date(2026, 3, 1)
TOOLS = "canaries.failure_rate[tools]"
MAIN = ("sandbox", "main")


@pytest.fixture
def drifted(tmp_path: Path) -> History:
    """Six runs of which the first is blessed and the last three are worse."""
    opened = open_history(tmp_path)
    runs = [judge_run(opened, broken, DAY) for broken in (2, 2, 2, 60, 60, 60)]
    opened.bless(runs[0].id, "eva", "good")
    return opened


def test_few_metrics_are_followed_as_among_all(drifted: History) -> None:
    """Of what was not asked nothing is said."""
    every = drift_of(drifted, *MAIN)
    key = "canaries.failure_rate[tools]"
    one = followed(drifted, standing_drift(drifted, *MAIN), [key])
    assert one == [metric for metric in every.metrics if metric.key == key]
    assert one[0].points
    assert followed(drifted, every, []) == []
    found = drift_of(drifted, *MAIN, containing="failure")
    assert (found.watched, found.never_measured) == (1, ())
    assert "never measured" not in found.statement


def test_runs_that_never_ended_do_not_hide_the_newest_verdict(
    drifted: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drifting, "RECENT", 2)
    before = drifting.judged_keys(drifted, *MAIN)
    for _ in range(3):
        drifted.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    assert before
    assert drifting.judged_keys(drifted, *MAIN) == before


def test_a_newest_run_that_did_not_measure_it_is_not_stable(drifted: History) -> None:
    run = drifted.get_run("latest")
    drifted.bless(run.id, owner="eva", reason="good")
    drifted.update_run(run.id, suites={"canaries": "s"})
    assert drift_of(drifted, *MAIN, containing="tools").state is DriftState.STABLE
    suites, policy = {"canaries": "s"}, small_policy()
    known = {"identity": run.identity, "reference_identity": run.reference_identity}
    crashed = drifted.start_run(family="sandbox", branch="main", policy=policy, suites=suites, **known)
    before = len(drifted.list_runs(branch="main"))
    drifted.finish_run(crashed.id, run.report)
    found = drift_of(drifted, *MAIN, containing="tools")
    assert (found.state, found.runs) == (DriftState.INCOMPARABLE, before)
    assert crashed.id in found.metrics[0].statement


@pytest.mark.long
def test_exit_codes_without_a_blessing_stable_drifting_and_accepted(history: History, tmp_path: Path) -> None:
    def drift(*options: str):
        return commands.q36eval("drift", "--branch", "main", *options, state=tmp_path)

    assert drift().returncode == 3
    runs = [judge_run(history, 2, DAY) for _ in range(3)]
    assert drift().returncode == 3
    history.bless(runs[0].id, owner="eva", reason="good")
    assert drift().stdout.startswith("STABLE main of sandbox: ")
    runs += [judge_run(history, 60, DAY) for _ in range(2)]
    told, found = drift(), drift("--json")
    assert told.returncode == found.returncode == 1
    assert f"since run {runs[3].id}" in told.stdout
    body = json.loads(found.stdout)
    (moved,) = [metric for metric in body["metrics"] if metric["state"] == "drifting"]
    assert (body["exit_code"], body["watched"]) == (1, len(small_policy().criteria) - 1)  # faults are a count
    assert (moved["key"], moved["since_run_id"], moved["worse"]) == (TOOLS, runs[3].id, True)
    assert moved["difference"]["effect"] == pytest.approx(0.29)
    assert drift("--metric", "accuracy").returncode == 0
    history.bless(runs[-1].id, owner="eva", reason="known, and worth it")
    assert drift().returncode == 0


@pytest.mark.long
def test_without_a_branch_all_are_reported_and_the_worst_blessed_one_decides(history: History, tmp_path: Path) -> None:
    assert commands.q36eval("drift", state=tmp_path).returncode == 3
    for branch, broken in (("apart", [2] * 2), ("main", [2] * 4), ("fp8-head", [2, 2, 2, 60, 60, 60])):
        runs = [judge_run(history, count, DAY, branch=branch) for count in broken]
        if branch != "apart":
            history.bless(runs[0].id, owner="eva", reason="good")
    found = commands.q36eval("drift", "--json", state=tmp_path, code=1)
    states = [(one["branch"], one["state"]) for one in json.loads(found.stdout)["branches"]]
    assert states == [("fp8-head", "drifting"), ("main", "stable"), ("apart", "not_blessed")]
    assert commands.q36eval("drift", "--branch", "w4a16", state=tmp_path).returncode == 3, "it has no runs"
