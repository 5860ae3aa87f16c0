"""Whole gates by simulation, small: `python -m benchmarks.gate_errors` draws thousands of them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from q36eval.gate import Policy, PolicyRule, decide
from q36eval.gate.policy_file import read_policy
from q36eval.records import Measurement, ProbeFailure, ProbeName, Verdict
from q36eval.stats import _bootstrap
from tests.q36eval.gate.evidence import census, divergence, shipped_evidence

POLICY = Path(__file__).parents[3] / "data" / "policies" / "sandbox.yaml"
STAGES = (ProbeName.WEIGHTS, ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy(POLICY)


def stopped_at(policy: Policy, evidence: Iterable[Measurement]) -> tuple[ProbeName | None, Verdict]:
    """After which probe a run stops early (None: it measures all), and the verdict that it gives."""
    by_probe = {probe: [each for each in evidence if each.probe == probe] for probe in STAGES}
    known: list[Measurement] = []
    for number, probe in enumerate(STAGES, 1):
        known += by_probe[probe]
        if number < len(STAGES) and PolicyRule(policy).decided(known, frozenset(STAGES[:number])):
            skipped = [ProbeFailure(probe=each, reason="decided", kind="skipped") for each in STAGES[number:]]
            return probe, decide(policy, known, (), skipped).verdict
    return None, decide(policy, known).verdict


@pytest.mark.parametrize("seed", range(3))
def test_an_identical_branch_passes_and_a_ruined_one_fails_before_the_evals(policy: Policy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert stopped_at(policy, shipped_evidence(rng, 0.0)) == (None, Verdict.PASS)
    ruined = shipped_evidence(rng, 6.0)
    assert stopped_at(policy, ruined) == (ProbeName.CANARIES, Verdict.FAIL)
    assert decide(policy, ruined).verdict is Verdict.FAIL, "the evidence that was not measured changes no verdict"


@pytest.mark.long
def test_a_branch_at_its_margin_hardly_ever_passes(policy: Policy) -> None:
    kept = tuple(each for each in policy.criteria if each.id in ("kl",))
    alone = policy.model_copy(update={"criteria": kept})
    (margin,) = (each.margin.value for each in kept if each.id == "kl")
    rng, sigma, passed = np.random.default_rng(1), 0.9, 0
    for _ in range(40):
        per_token = margin * rng.lognormal(-(sigma**2) / 2, sigma, 200)
        evidence = [census(ProbeName.KL, "non_finite_tokens", 0), divergence(per_token.tolist())]
        passed += decide(alone, evidence).verdict is Verdict.PASS
    # 40 gates at 2.5 % hold five or more passes once in 300 times
    assert passed < 5


@pytest.mark.long
def test_the_shipped_policy_fails_three_margins_worse(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 999)  # coarser p-values, the same test, ten times as fast
    rng = np.random.default_rng(2)
    reports = [decide(policy, shipped_evidence(rng, 3.0)) for _ in range(20)]
    # 20 of 20: at a true rate of 95 % this would be seen in a third of all seeds, so the rate is well above it
    assert all(report.verdict is Verdict.FAIL for report in reports)
    assert all(lane.verdict is Verdict.FAIL for report in reports for lane in report.lanes)
    blocking = [r.id for r in policy.criteria if r.tier == "blocking" and r.margin.kind != "max_count"]
    shares = {
        i: np.mean([any(c.id == i and c.verdict == "FAIL" for c in r.criteria) for r in reports]) for i in blocking
    }
    assert min(shares.values()) >= 0.9, shares
