"""Earlier gates of the same deployment: what they do to the chance of a false PASS, and to a PASS."""

from datetime import UTC, date, datetime

import pytest

from q36eval.gate import EarlierGate, Policy, SignOff, Tried, decide
from q36eval.gate.attempts import attempts_of, judged_content
from q36eval.records import Verdict
from q36eval.reports.story import notes
from tests.q36eval.gate.evidence import small_evidence, small_policy

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
    assert found is not None
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


def test_a_policy_by_another_name_or_with_other_words_is_the_same_to_try() -> None:
    policy = small_policy()
    renamed = policy.model_copy(update={"name": "other", "max_attempts": 1, "criteria": policy.criteria[::-1]})
    assert judged_content(renamed) == judged_content(policy)
    looser = policy.criteria[0].model_copy(update={"confidence": 0.9})
    assert judged_content(policy.model_copy(update={"criteria": (looser, *policy.criteria[1:])})) != judged_content(
        policy
    )
