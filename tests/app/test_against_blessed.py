"""Which of a blessed run's measurements another run may be held against."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Family, Paths
from q36eval.gate import Circumstances, Policy
from q36eval.history import History
from q36eval.history.decisions import blessed_beside, decided, evidence_of
from q36eval.records import DeploymentIdentity, Measurement, ProbeName, Verdict
from q36eval.run.measure import stopping_rule
from q36eval.run.request import Request, Target
from tests.app.judged_runs import IDENTITY, open_history
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
