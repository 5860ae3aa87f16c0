"""Hand-labelled answers, most of them written by somebody who had never seen a checker, and how they are read."""

import pytest

from q36eval.canaries.checks import Outcome
from tests.canaries.hand_labelled import FOLDER, PARTS, HandLabelled, hand_labelled, sha256_of

RIGHT, WRONG, UNREADABLE = Outcome
ACCEPTED = {"blind-others": 2, "informed-others": 8}
REJECTED = {"second-discounts": 1}
"""At most so many, by part; of all others none."""


@pytest.fixture(scope="module")
def read() -> dict[str, list[tuple[HandLabelled, Outcome]]]:
    return {part: [(answer, answer.outcome()) for answer in hand_labelled((part,))] for part in PARTS}


def test_the_files_are_those_whose_hashes_were_committed_before() -> None:
    sums = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {*(f"{part}.jsonl" for part in PARTS), "prompts.yaml"}
    assert {name: sha256_of(name) for name in sums} == sums


def share(answers: list[tuple[HandLabelled, Outcome]], label: Outcome, outcome: Outcome) -> tuple[int, int]:
    of_label = [read_as for answer, read_as in answers if answer.label is label]
    return of_label.count(outcome), len(of_label)


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_readable_answer_is_read_as_a_person_does(part: str, read) -> None:
    """`ACCEPTED` and `REJECTED` count the wrong readings that are left; none of them may grow."""
    rejected, right = share(read[part], RIGHT, WRONG)
    accepted, wrong = share(read[part], WRONG, RIGHT)
    assert accepted <= ACCEPTED.get(part, 0), f"{accepted} of {wrong} wrong answers are read as right"
    assert rejected <= REJECTED.get(part, 0), f"{rejected} of {right} right answers are read as wrong"
    unclear = [answer.kind for answer, outcome in read[part] if outcome is UNREADABLE is not answer.label]
    assert len(unclear) <= 0.03 * (right + wrong), unclear
