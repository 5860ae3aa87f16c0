"""Tokens without finite figures and damaged files fail a branch whatever its policy judges, and must be counted."""

from datetime import date

import pytest

from q36eval.gate import Criterion, GateReport, Policy, Waiver, decide
from q36eval.records import Lane, Measurement, ProbeName, Verdict
from tests.q36eval.gate.evidence import FINITE, accuracy, census, criterion, divergence

BOTH = (Lane.STRUCTURED, Lane.FREEFORM)
RULE = "outputs-finite"
INTACT = census(ProbeName.WEIGHTS, "integrity_faults", 0)


def policy(*own: Criterion) -> Policy:
    """It judges the mean divergence, and what else is given."""
    return Policy(name="p", criteria=(criterion("max_value", 0.1, id="kl", lanes=BOTH), *own))


def own(identifier: str = "finite", value: float = 0, **changes: object) -> Criterion:
    known = {"id": identifier, "metric": "non_finite_tokens", "lanes": BOTH, "waivable": False}
    return criterion("max_count", value, **(known | changes))


def decided(count: float, *criteria: Criterion, **more: object) -> GateReport:
    """A branch whose other tokens are perfect."""
    evidence = [divergence([1e-5] * 60), census(ProbeName.KL, "non_finite_tokens", count)]
    return decide(policy(*criteria), evidence, **more)  # type: ignore[arg-type]


def test_one_such_token_fails_every_lane_of_a_policy_that_judges_only_the_mean() -> None:
    assert decided(0).verdict is Verdict.PASS
    report = decided(1)
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, (RULE,))
    assert {lane.verdict for lane in report.lanes} == {Verdict.FAIL}


@pytest.mark.parametrize(
    "lax", [own(value=50), own(lanes=BOTH[:1]), own(waivable=True), own(tier="advisory"), own(RULE, value=50)]
)
def test_no_laxer_rule_of_the_policy_stands_in_its_place(lax: Criterion) -> None:
    waivers = [Waiver(owner="o", reason="r", criterion=name, expires=date(2030, 1, 1)) for name in (RULE, lax.id, "kl")]
    report = decided(7, lax, waivers=waivers, on=date(2026, 1, 1))
    assert report.verdict is Verdict.FAIL
    assert any(name.startswith(RULE) for name in report.decisive)


def test_a_policy_with_the_rule_is_judged_by_its_own() -> None:
    report = decided(7, own())
    assert (report.decisive, len(report.criteria)) == (("finite",), 2)


@pytest.mark.parametrize(
    ("found", "code", "decisive"),
    [
        ([], 0, ()),
        ([FINITE], 1, (RULE,)),
        ([INTACT], 1, ("checkpoint-intact",)),
    ],
)
def test_nothing_passes_without_these_counts(found: list[Measurement], code: int, decisive: tuple[str, ...]) -> None:
    """Of each probe by which the policy blocks; a fault of another probe counts wherever it was counted."""
    scheme = criterion("max_count", 0, id="coverage", probe="weights", metric="coverage_faults", lanes=BOTH)
    evidence = [divergence([1e-5] * 60), census(ProbeName.WEIGHTS, "coverage_faults", 0), FINITE, INTACT]
    report = decide(policy(scheme), [m for m in evidence if m not in found])
    assert (report.exit_code != 0, report.decisive) == (bool(code), decisive)
    broken = [census(m.probe, m.metric, 1) for m in found]
    assert decide(policy(scheme), [m for m in evidence if m not in found] + broken).exit_code == code
    only_accuracy = Policy(name="p", criteria=(criterion("min_recovery", 0.9, probe="evals", metric="accuracy"),))
    assert decide(only_accuracy, [accuracy([1] * 200, [1] * 200, "all"), *broken]).exit_code == code


def test_the_rule_that_every_policy_holds_guards_no_lane_by_itself() -> None:
    """All that the policy asks for is waived, and that no token was broken is no reason to release."""
    waiver = Waiver(owner="o", reason="r", criterion="kl", expires=date(2030, 1, 1))
    report = decide(policy(), [divergence([0.5] * 60), FINITE], [waiver], on=date(2026, 1, 1))
    assert {result.id: str(result.verdict) for result in report.criteria}[RULE] == "PASS"
    assert (report.verdict, report.exit_code, report.waived) == (Verdict.INCONCLUSIVE, 3, ("kl",))
