"""When a fixed prompt blocks by itself: the reference is surely right every time, and the branch wrong every time."""

from typing import Any

import pytest

from q36eval.canaries.must_pass import MARGIN_FLOOR_NATS, Standing, standing, why_not_absolute
from q36eval.canaries.specification import CanarySpec, load_specs
from q36eval.canaries.summary import summarize_outcomes
from q36eval.records import Answer, ItemOutcome, Measurement
from tests.canaries import runs

RIGHT, WRONG, UNKNOWN = 1.0, 0.0, None


SPEC = load_specs(only=["enum-select-must-pass"])[0].model_copy(update={"id": "a"})
NO_LIST = SPEC.model_copy(update={"absolute": False})


def _answer(*scores: float | None, nats: float | None = 2 * MARGIN_FLOOR_NATS) -> Answer:
    """The first answer, and those in other batches; `nats` is its least margin."""
    detail: dict[str, Any] = {"repeats": [{"rows": 1, "score": score} for score in scores[1:]]} if scores[1:] else {}
    return Answer(score=scores[0], detail=detail if nats is None else detail | {"margin": {"nats": nats}})


def _outcome(reference: Answer, branch: Answer, name: str = "a/b") -> ItemOutcome:
    return runs.outcome(name, branch, reference, must_pass=True)


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


def _figures(*outcomes: ItemOutcome, specs: tuple[CanarySpec, ...] = (SPEC,)) -> dict[str, Measurement]:
    return {figure.metric: figure for figure in summarize_outcomes(specs, outcomes) if figure.slice == "all"}


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (STEADY, None),
        (_answer(RIGHT, RIGHT, RIGHT, nats=MARGIN_FLOOR_NATS), None),
        (_answer(RIGHT, RIGHT, RIGHT, nats=0.37), "margin 0.37 nats"),
        (_answer(RIGHT, RIGHT, RIGHT, nats=float("nan")), "margin nan nats"),
        (_answer(RIGHT, RIGHT, RIGHT, nats=None), "the reference's margin is unknown"),
        (_answer(RIGHT, WRONG, RIGHT), "the reference fails it in 1 of 3 batches"),
        # an error says nothing of the prompt: it stays, and nothing passes by it
        (_answer(UNKNOWN), None),
        (_answer(RIGHT, RIGHT, UNKNOWN, nats=0.37), None),
    ],
)
def test_the_reference_alone_says_which_prompts_are_counted(reference: Answer, why: str | None) -> None:
    assert why_not_absolute(reference) == why


def test_a_prompt_below_the_floor_is_judged_as_a_rate_by_name() -> None:
    lost = _answer(WRONG, WRONG, WRONG)
    outcomes = [
        _outcome(STEADY, _answer(RIGHT), "a/sure"),
        _outcome(_answer(RIGHT, RIGHT, RIGHT, nats=0.37), lost, "a/thin"),
        _outcome(_answer(WRONG, RIGHT, RIGHT), lost, "a/hopeless"),
    ]
    figures = _figures(*outcomes)
    flips, rate = figures["must_pass_flips"], figures["fixed_prompt_failure_rate"]
    assert (flips.value, flips.counts.total) == (0.0, 1)
    assert "a/thin (margin 0.37 nats), a/hopeless (the reference fails it in 1 of 3 batches)" in flips.note
    assert (rate.counts.total, rate.value, rate.reference_value) == (2, 1.0, 0.5)
    off = _figures(*outcomes, specs=(NO_LIST,))
    assert "must_pass_flips" not in off
    assert (off["fixed_prompt_failure_rate"].counts.total, off["fixed_prompt_failure_rate"].value) == (3, 2 / 3)
