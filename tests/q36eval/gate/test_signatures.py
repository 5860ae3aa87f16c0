"""What takes a signature: implausible gains, by no chance called so where nothing was lost, and many attempts."""

from datetime import UTC, date, datetime

import numpy as np
import pytest

from q36eval.gate import CriterionVerdict, EarlierGate, GateReport, Policy, PolicyRule, SignOff, Tried, decide
from q36eval.gate.attempts import attempts_of, judged_content
from q36eval.gate.headroom import is_anomalous
from q36eval.records import Measurement, Verdict
from q36eval.reports.story import notes
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


# -- earlier gates of the same deployment: what they do to the chance of a false PASS, and to a PASS

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def tried(*answers: str, own: str = "now") -> Tried:
    earlier = tuple(
        EarlierGate(run_id=f"r{number}", finished=DAY, verdict=Verdict.INCONCLUSIVE, answers=name)
        for number, name in enumerate(answers)
    )
    return Tried(earlier=earlier, answers=own)


def limited(attempts: int | None) -> Policy:
    return small_policy().model_copy(update={"max_attempts": attempts})


def test_a_first_gate_says_nothing_of_attempts_and_gates_without_a_verdict_are_told_and_not_counted() -> None:
    assert attempts_of(limited(1), None) is None
    assert attempts_of(limited(1), tried()) is None
    assert decide(limited(1), small_evidence(), on=date(2026, 3, 2), tried=tried()).verdict is Verdict.PASS
    found = decide(limited(1), small_evidence(), tried=Tried(unfinished=("r7", "r8"), answers="now"))
    assert found.verdict is Verdict.PASS
    assert any("2 times: r8, r7" in note for note in notes(found, None))


@pytest.mark.parametrize(
    ("answers", "sets"), [(("a",), 2), (("a", "b", "c"), 4), (("a", "a", "b"), 3), (("now", "now"), 1)]
)
def test_gates_of_the_same_answers_are_one_try(answers, sets) -> None:
    found = attempts_of(limited(None), tried(*answers))
    assert (found.answer_sets, len(found.earlier)) == (sets, len(answers))
    # the least confident blocking criterion passes a branch at its margin most often
    loosest = max(1 - c.confidence for c in limited(None).criteria if c.margin.kind != "max_count")
    assert found.false_pass_any == pytest.approx(1 - (1 - loosest) ** sets)


def test_beyond_the_attempts_allowed_a_pass_takes_a_signature_and_nothing_else_changes() -> None:
    before = tried("a", "b")
    assert decide(limited(3), small_evidence(), tried=before).verdict is Verdict.PASS
    found = decide(limited(2), small_evidence(), tried=before)
    assert (found.verdict, found.exit_code, found.awaiting_sign_off) == (Verdict.INCONCLUSIVE, 3, True)
    assert {lane.verdict for lane in found.lanes} == {Verdict.PASS}
    assert any("2 sets of answers" in note and "number 3" in note for note in notes(found, None))
    signature = SignOff(owner="eva", reason="seen", at=DAY, report_sha256="0" * 64)
    assert decide(limited(2), small_evidence(), tried=before, sign_offs=[signature]).verdict is Verdict.PASS
    failed = decide(limited(2), small_evidence(tools_broken=60), tried=before)
    assert (failed.verdict, failed.awaiting_sign_off) == (Verdict.FAIL, False)
    # what passed within the limit needs no luck any more: counting begins again
    passed = before.earlier[1].model_copy(update={"verdict": Verdict.PASS})
    since = before.model_copy(update={"earlier": (before.earlier[0], passed)})
    assert decide(limited(1), small_evidence(), tried=since).verdict is Verdict.PASS
    again = since.model_copy(update={"earlier": (*since.earlier, *tried("c").earlier)})
    assert decide(limited(1), small_evidence(), tried=again).awaiting_sign_off


def test_a_policy_by_another_name_or_with_other_words_is_the_same_to_try() -> None:
    policy = small_policy()
    renamed = policy.model_copy(update={"name": "other", "max_attempts": 1, "criteria": policy.criteria[::-1]})
    assert judged_content(renamed) == judged_content(policy)
    looser = policy.criteria[0].model_copy(update={"confidence": 0.9})
    assert judged_content(policy.model_copy(update={"criteria": (looser, *policy.criteria[1:])})) != judged_content(
        policy
    )
