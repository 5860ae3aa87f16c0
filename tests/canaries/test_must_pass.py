"""When a must-pass prompt blocks: only where the reference is right every time and the branch wrong every time."""

from typing import Any

import pytest

from canaries.must_pass import Standing, must_pass_figures, standing
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName

RIGHT, WRONG, UNKNOWN = 1.0, 0.0, None


def _answer(*scores: float | None) -> Answer:
    """The first answer, and those in other batches."""
    detail: dict[str, Any] = {"repeats": [{"rows": 1, "score": score} for score in scores[1:]]} if scores[1:] else {}
    return Answer(score=scores[0], detail=detail)


def _outcome(reference: Answer, branch: Answer, name: str = "a/b") -> ItemOutcome:
    return ItemOutcome(
        probe=ProbeName.CANARIES,
        group="a",
        item_key=name,
        cluster=name,
        must_pass=True,
        reference=reference,
        branch=branch,
    )


STEADY = _answer(RIGHT, RIGHT, RIGHT)


@pytest.mark.parametrize(
    ("reference", "branch", "expected"),
    [
        (STEADY, _answer(RIGHT), Standing.PASSED),
        (STEADY, _answer(WRONG, WRONG, WRONG), Standing.FLIPPED),
        (STEADY, _answer(WRONG, RIGHT, WRONG), Standing.UNSTABLE),
        (STEADY, _answer(WRONG, WRONG, RIGHT), Standing.UNSTABLE),
        (STEADY, _answer(WRONG), Standing.UNCONFIRMED),
        (STEADY, _answer(WRONG, WRONG, UNKNOWN), Standing.UNKNOWN),
        (STEADY, _answer(UNKNOWN), Standing.UNKNOWN),
        (_answer(UNKNOWN), _answer(WRONG, WRONG, WRONG), Standing.UNKNOWN),
        (_answer(WRONG, WRONG, WRONG), _answer(WRONG), Standing.NO_CANARY),
        (_answer(RIGHT, WRONG, RIGHT), _answer(WRONG, WRONG, WRONG), Standing.NO_CANARY),
        (_answer(RIGHT, WRONG, RIGHT), _answer(UNKNOWN), Standing.NO_CANARY),
        (_answer(RIGHT, RIGHT, UNKNOWN), _answer(RIGHT), Standing.UNKNOWN),
    ],
)
def test_standing(reference: Answer, branch: Answer, expected: Standing) -> None:
    assert standing(_outcome(reference, branch)) is expected


def _figures(*outcomes: ItemOutcome) -> dict[str, Measurement]:
    return {figure.metric: figure for figure in must_pass_figures("all", outcomes)}


def test_unstable_prompts_are_told_and_do_not_count_as_flips() -> None:
    found = _figures(
        _outcome(STEADY, _answer(WRONG, RIGHT, WRONG), "a/shaky"),
        _outcome(STEADY, _answer(WRONG, WRONG, WRONG), "a/flipped"),
        _outcome(_answer(WRONG), _answer(WRONG), "a/hopeless"),
        _outcome(STEADY, _answer(RIGHT), "a/fine"),
    )
    flips, unstable = found["must_pass_flips"], found["must_pass_unstable"]
    assert (flips.value, unstable.value) == (1.0, 1.0)
    assert (flips.counts.total, flips.counts.scored, flips.counts.errored) == (3, 3, 0)
    for named in ("every batch: a/flipped", "some batches only: a/shaky", "the reference itself fails: a/hopeless"):
        assert named in flips.note


def test_what_could_not_be_confirmed_is_errored_so_that_nothing_passes_on_it() -> None:
    doubtful, fine = _outcome(STEADY, _answer(WRONG), "a/x"), _outcome(STEADY, _answer(RIGHT), "a/y")
    flips = _figures(doubtful, fine)["must_pass_flips"]
    assert (flips.value, flips.counts.scored, flips.counts.errored) == (0.0, 1, 1)


def test_what_errored_on_the_branch_is_no_fault_of_the_reference() -> None:
    outcomes = [
        _outcome(STEADY, _answer(UNKNOWN), "a/x"),
        _outcome(STEADY, _answer(RIGHT), "a/y"),
        _outcome(_answer(RIGHT, RIGHT, UNKNOWN), _answer(RIGHT), "a/z"),
        _outcome(_answer(RIGHT, WRONG, RIGHT), _answer(RIGHT), "a/w"),
    ]
    assert "passes 2 of 4 must-pass prompts every time" in _figures(*outcomes)["must_pass_flips"].note
