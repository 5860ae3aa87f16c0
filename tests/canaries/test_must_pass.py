"""When a fixed prompt blocks by itself: the reference is surely right every time, and the branch wrong every time."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from q36eval.canaries.answers import judged_answer
from q36eval.canaries.cases import Case
from q36eval.canaries.checks import CHECKS, NotJudgedError
from q36eval.canaries.checks.base import Check, Expected, Failure, Tools
from q36eval.canaries.must_pass import MARGIN_FLOOR_NATS, Standing, standing, why_not_absolute
from q36eval.canaries.outcomes import UNREADABLE, PlannedItem, cause_of, competence_of, failure_causes
from q36eval.canaries.paired import cut_off, failed, rate, unended
from q36eval.canaries.specification import CanarySpec, GenerationSettings, load_specs
from q36eval.canaries.summary import summarize_outcomes
from q36eval.gate import Criterion, CriterionVerdict, Margin
from q36eval.gate.judgement import judge
from q36eval.metrics import METRICS, DeclaredFigure
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName
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


# -- answers that cannot be read


READABLE, MISREAD = Answer(score=1.0, text="A"), Answer(score=0.0, text="B")
UNREAD = Answer(score=None, text="?", unreadable="which shop is meant cannot be told (end)")
EACH = (UNREAD, READABLE, MISREAD)
ERRORED = Answer(score=None, error="the engine went down")

AT_MOST_5_POINTS = Criterion(
    id="failures",
    probe=ProbeName.CANARIES,
    metric="failure_rate",
    margin=Margin(kind="max_increase", value=0.05, source="test"),
    lanes=(Lane.FREEFORM,),
)


def outcome(number: int, branch: Answer, reference: Answer = READABLE) -> ItemOutcome:
    return runs.outcome(f"c/{number}", branch, reference)


def share_of(metric: str) -> DeclaredFigure:
    return METRICS[ProbeName.CANARIES, metric].declared()


def failures(*branch: Answer, right: int) -> Measurement:
    outcomes = [outcome(n, answer) for n, answer in enumerate([*branch, *[READABLE] * right])]
    measurement = rate(share_of("failure_rate"), outcomes, failed)
    able = competence_of([PlannedItem("c", cause_of(each.reference)) for each in outcomes])
    return measurement.model_copy(update={"competence": able})


def test_an_answer_that_cannot_be_read_has_no_score_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_tell(text: str, expected: Expected, tools: Tools) -> Iterator[Failure]:
        if "?" in text:
            yield Failure("doubtful", "unclear", "line 1", "two readings", unreadable=True)

    monkeypatch.setitem(CHECKS, "doubtful", Check("doubtful", Expected, cannot_tell))
    settings = GenerationSettings(max_new_tokens=8)
    case = Case("c/1", "c", "s", (), (), {}, "A", settings, ("doubtful",), must_pass=False)
    answer = judged_answer(case, "A?", "stop", 2)
    assert (answer.score, answer.error, answer.unreadable) == (None, None, "two readings (line 1)")
    assert cause_of(answer) == UNREADABLE
    assert answer.detail["failures"][0]["unreadable"] is True
    assert judged_answer(case, "A", "stop", 2).score == 1.0
    # cut off at its budget it is wrong, whatever might have been read of it
    assert judged_answer(case, "A?", "length", 8).score == 0.0
    monkeypatch.setattr("q36eval.canaries.answers.run_checks", Mock(side_effect=[NotJudgedError("slow"), []]))
    assert [judged_answer(case, "B", "stop", 2).score for _ in range(2)] == [None, 1.0]  # the next try may finish


@pytest.mark.parametrize("text", ["<think>\n\n</think>\n\nA", "A</think>"])
def test_marks_of_reasoning_are_wrong_where_thinking_is_off(text: str) -> None:
    settings = GenerationSettings(max_new_tokens=8)
    case = Case("c/1", "c", "s", (), (), {}, "A", settings, (), must_pass=False)
    answer = judged_answer(case, text, "stop", 2)
    assert [failure["code"] for failure in answer.detail["failures"]] == ["thought"]


def test_counted_apart_from_errors_and_imputed_like_them() -> None:
    """Many of them are not measured, and some are named."""
    measurement = failures(UNREAD, MISREAD, ERRORED, right=197)
    assert measurement.counts.model_dump() == {"total": 200, "scored": 198, "errored": 1, "unreadable": 1}
    assert measurement.causes.branch == {"errored": 1, "unreadable": 1, "wrong": 1}
    assert failure_causes([outcome(0, ERRORED, UNREAD)]).reference == {"unreadable": 1}
    assert measurement.causes.unread == ("c/0 on the branch: which shop is meant cannot be told (end)",)
    few, many = [MISREAD], [MISREAD] * 20
    # at its worst for a PASS, at its best for a FAIL
    unread, right, wrong = (judge(AT_MOST_5_POINTS, [failures(*few, last, right=198)], []) for last in EACH)
    assert right.p_pass < wrong.p_pass <= unread.p_pass
    unread, right, wrong = (judge(AT_MOST_5_POINTS, [failures(*many, last, right=179)], []) for last in EACH)
    assert wrong.p_fail < right.p_fail <= unread.p_fail
    result = judge(AT_MOST_5_POINTS, [failures(*[UNREAD] * 5, right=195)], [])
    assert result.verdict is CriterionVerdict.NOT_MEASURED
    assert not result.infrastructure
    assert "5 of 200 items have an unreadable answer, more than 2%: c/0 on the branch" in result.reason
    some = judge(AT_MOST_5_POINTS, [failures(*[UNREAD] * 4, right=596)], [])
    assert some.p_pass < 1.0 - AT_MOST_5_POINTS.confidence


def test_how_an_answer_ends_is_known_of_one_that_cannot_be_read() -> None:
    cut = MISREAD.model_copy(update={"detail": {"finish_reason": "length"}})
    measurement = rate(
        share_of("cut_off_rate"), [outcome(n, each) for n, each in enumerate((UNREAD, cut, ERRORED, READABLE))], cut_off
    )
    assert measurement.counts.model_dump() == {"total": 4, "scored": 3, "errored": 1, "unreadable": 0}
    assert measurement.value == 1 / 3
    # an answer that is cut off after its thoughts has no end either
    assert [unended(each) for each in (cut, UNREAD, ERRORED)] == [1.0, 0.0, None]


def test_nothing_passes_by_a_fixed_prompt_that_cannot_be_read_and_the_reference_s_are_no_canary() -> None:
    assert standing(outcome(0, UNREAD)) is Standing.UNREADABLE
    assert standing(outcome(0, READABLE, UNREAD)) is Standing.NO_CANARY
    assert why_not_absolute(UNREAD) == "the reference's answer cannot be read in 1 of 1 batches"
    again = {"repeats": [{"score": None, "unreadable": "two readings"}, {"score": 0.0}]}
    assert standing(outcome(0, MISREAD.model_copy(update={"detail": again}))) is Standing.UNREADABLE
