"""Answers labelled by hand, before any checker saw them: what the checks must say of each, and where."""

import pytest

from q36eval.canaries.checks import CHECKS, decisions, run_checks
from tests.canaries.hand_labelled import Labelled, labelled_answers

LABELLED = list(labelled_answers())
RIGHT = [answer for answer in LABELLED if not answer.codes]
ENOUGH = 150


@pytest.mark.long
@pytest.mark.parametrize("answer", LABELLED, ids=lambda answer: answer.name)
def test_every_answer_is_judged_as_its_label_says(answer: Labelled) -> None:
    failures = run_checks(answer.text, answer.checks, answer.expected, answer.tools)
    said = [(failure.code, failure.place, failure.message) for failure in failures]
    assert {failure.code for failure in failures} == answer.codes, said
    if answer.places is not None:
        assert sorted({failure.place for failure in failures}) == sorted(answer.places), said


def test_every_check_has_right_and_wrong_answers() -> None:
    right = {check for answer in LABELLED if not answer.codes for check in answer.checks}
    wrong = {check for answer in LABELLED if answer.codes for check in answer.checks}
    assert right == wrong == set(CHECKS)
    assert len(LABELLED) >= ENOUGH


@pytest.mark.long
@pytest.mark.parametrize("answer", RIGHT, ids=lambda answer: answer.name)
def test_decisions_lie_inside_and_a_wrong_choice_fails(answer: Labelled) -> None:
    for decision in decisions(answer.text, answer.checks, answer.expected, answer.tools):
        assert 0 <= decision.start < decision.end <= len(answer.text)
        for wrong in decision.wrong:
            changed = answer.text[: decision.start] + wrong + answer.text[decision.end :]
            assert run_checks(changed, answer.checks, answer.expected, answer.tools), (decision, changed)
