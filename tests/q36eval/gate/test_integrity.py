"""Tokens without finite figures fail a branch whatever its policy judges."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from q36eval.gate import Criterion, GateReport, Policy, Waiver, decide
from q36eval.records import Lane, ProbeName, Verdict
from tests.q36eval.gate.evidence import census, criterion, divergence

BOTH = (Lane.STRUCTURED, Lane.FREEFORM)
RULE = "integrity.non-finite-tokens"


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


def test_a_policy_with_the_rule_is_judged_by_its_own_and_one_that_asks_laxly_passes_on_no_lost_count() -> None:
    report = decided(7, own())
    assert (report.decisive, len(report.criteria)) == (("finite",), 2)
    report = decide(policy(own(tier="advisory")), [divergence([1e-5] * 60)])
    assert (report.verdict, report.decisive) == (Verdict.INCONCLUSIVE, (RULE,))


@given(st.integers(0, 3))
def test_a_damaged_checkpoint_fails_a_policy_that_does_not_look_at_it(faults: int) -> None:
    found = [divergence([1e-5] * 60), census(ProbeName.WEIGHTS, "integrity_faults", faults)]
    report = decide(policy(), found)
    damaged = ("integrity.damaged-checkpoint",)
    assert (report.exit_code, report.decisive) == ((1, damaged) if faults else (0, ()))
    assert decide(policy(), found[1:]).exit_code == (1 if faults else 3), "and where nothing else could be measured"


def test_the_rule_that_every_policy_holds_guards_no_lane_by_itself() -> None:
    """All that the policy asks for is waived, and that no token was broken is no reason to release."""
    waiver = Waiver(owner="o", reason="r", criterion="kl", expires=date(2030, 1, 1))
    found = [divergence([0.5] * 60), census(ProbeName.KL, "non_finite_tokens", 0)]
    report = decide(policy(own(tier="advisory", value=5)), found, [waiver], on=date(2026, 1, 1))
    assert {result.id: str(result.verdict) for result in report.criteria}[RULE] == "PASS"
    assert (report.verdict, report.exit_code, report.waived) == (Verdict.INCONCLUSIVE, 3, ("kl",))
