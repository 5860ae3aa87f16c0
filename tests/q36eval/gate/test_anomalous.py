"""Implausible gains: INCONCLUSIVE until somebody signs, by no chance called so of a branch that lost nothing."""

from datetime import UTC, datetime

import numpy as np
import pytest

from q36eval.gate import CriterionVerdict, GateReport, PolicyRule, SignOff, decide
from q36eval.gate.headroom import is_anomalous
from q36eval.records import Measurement, Verdict
from tests.q36eval.gate.evidence import (
    accuracy,
    failure_rate,
    in_blocks,
    named,
    only,
    perplexity,
    small_evidence,
    small_policy,
)

SIGNED = SignOff(
    owner="eva", reason="the reference ran out of tokens", at=datetime(2030, 1, 1, tzinfo=UTC), report_sha256="0"
)
SOUND = small_evidence()[1:]
GAINING = accuracy([1] * 400, [1] * 300 + [0] * 100)
"""A recovery of 133 % against a margin of 10 %."""


def judged(found: Measurement, **more: object) -> GateReport:
    return decide(small_policy(), [found, *SOUND], **more)  # type: ignore[arg-type]


def test_an_implausible_gain_is_inconclusive_until_it_is_signed() -> None:
    report = judged(GAINING)
    mmlu = next(result for result in report.criteria if result.id == "mmlu")
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.INCONCLUSIVE, 3, ("mmlu",))
    assert (mmlu.verdict, mmlu.anomalous) == (CriterionVerdict.INCONCLUSIVE, True)
    assert mmlu.code == "anomalous-gain"
    signed = judged(GAINING, sign_offs=[SIGNED])
    mmlu = next(result for result in signed.criteria if result.id == "mmlu")
    assert (signed.verdict, signed.exit_code) == (Verdict.PASS, 0)
    assert (mmlu.verdict, mmlu.anomalous) == (CriterionVerdict.PASS, True)
    assert mmlu.code == "anomalous-gain-signed"
    assert "eva" in mmlu.reason
    assert judged(GAINING, require_sign_off=True, sign_offs=[SIGNED]).verdict is Verdict.PASS


def test_fewer_failures_and_less_perplexity_are_gains_too() -> None:
    fewer = failure_rate([0] * 300, [1] * 60 + [0] * 240, "tools")
    rng = np.random.default_rng(1)
    nll = 2.0 + rng.random(60)
    better = perplexity((nll - 0.1 + 0.01 * rng.standard_normal(60)).tolist(), nll.tolist())
    for found, kind, beyond, within in ((fewer, "max_increase", 0.05, 0.25), (better, "min_retention", 0.95, 0.85)):
        of = {"probe": found.probe, "metric": found.metric, "slice": found.slice}
        assert decide(only(kind, beyond, **of), [found]).criteria[0].anomalous
        assert not decide(only(kind, within, **of), [found]).criteria[0].anomalous


def test_progress_over_the_blessed_run_is_no_anomaly() -> None:
    mmlu = {"probe": "evals", "metric": "accuracy", "slice": "mmlu"}
    names = tuple(f"q{i}" for i in range(400))
    ours, theirs = named(GAINING, names), named(accuracy([1] * 300 + [0] * 100, [1] * 300 + [0] * 100), names)
    report = decide(only("min_recovery", 0.9, margin={"against": "blessed"}, **mmlu), [ours], blessed=[theirs])
    assert (report.verdict, report.criteria[0].anomalous) == (Verdict.PASS, False)


def test_what_gains_too_much_is_asked_on_until_that_is_known() -> None:
    rule = PolicyRule(small_policy())
    lucky = in_blocks(accuracy([1] * 100, [1] * 85 + [0] * 15))
    (result,) = [result for result in judged(lucky).criteria if result.id == "mmlu"]
    assert (result.verdict, is_anomalous(result)) == (CriterionVerdict.PASS, False)
    assert not rule.resolved_early([lucky])
    assert rule.resolved_early([in_blocks(GAINING)])


@pytest.mark.long
@pytest.mark.parametrize("flips", [0.0, 0.06])
def test_a_branch_without_loss_is_not_called_anomalous_and_one_that_gains_three_margins_is(flips: float) -> None:
    rng, margin, items, branches = np.random.default_rng(7), 0.03, 2_500, 12
    policy = only("min_recovery", 1 - margin, probe="evals", metric="accuracy", slice="mmlu")
    called = {0.0: 0, 3.0: 0}
    for gain in called:
        for _ in range(branches):
            right = rng.random(items) < 0.8
            lost = right & (rng.random(items) < flips / 2 / 0.8)
            gained = ~right & (rng.random(items) < (flips / 2 + gain * margin * 0.8) / 0.2)
            found = accuracy(((right & ~lost) | gained).astype(int).tolist(), right.astype(int).tolist())
            called[gain] += decide(policy, [found]).criteria[0].anomalous
    assert called == {0.0: 0, 3.0: branches}
