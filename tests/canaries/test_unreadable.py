"""An answer that a checker cannot read is neither right nor wrong: imputed, counted apart, and never passed over."""

from collections.abc import Iterator

import pytest

from q36eval.canaries.answers import judged_answer
from q36eval.canaries.cases import Case
from q36eval.canaries.checks import CHECKS
from q36eval.canaries.checks.base import Check, Expected, Failure, Tools
from q36eval.canaries.must_pass import Standing, standing, why_not_absolute
from q36eval.canaries.outcomes import UNREADABLE, PlannedItem, cause_of, competence_of, failure_causes
from q36eval.canaries.paired import cut_off, failed, rate, unended
from q36eval.canaries.specification import GenerationSettings
from q36eval.gate import Criterion, CriterionVerdict, Margin
from q36eval.gate.judgement import judge
from q36eval.metrics import METRICS, DeclaredFigure
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName
from tests.canaries import runs

RIGHT, WRONG = Answer(score=1.0, text="A"), Answer(score=0.0, text="B")
UNREAD = Answer(score=None, text="?", unreadable="which shop is meant cannot be told (end)")
EACH = (UNREAD, RIGHT, WRONG)
ERRORED = Answer(score=None, error="the engine went down")

AT_MOST_5_POINTS = Criterion(
    id="failures",
    probe=ProbeName.CANARIES,
    metric="failure_rate",
    margin=Margin(kind="max_increase", value=0.05, source="test"),
    lanes=(Lane.FREEFORM,),
)


def outcome(number: int, branch: Answer, reference: Answer = RIGHT) -> ItemOutcome:
    return runs.outcome(f"c/{number}", branch, reference)


def share_of(metric: str) -> DeclaredFigure:
    return METRICS[ProbeName.CANARIES, metric].declared()


def failures(*branch: Answer, right: int) -> Measurement:
    outcomes = [outcome(n, answer) for n, answer in enumerate([*branch, *[RIGHT] * right])]
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


@pytest.mark.parametrize("text", ["<think>\n\n</think>\n\nA", "A</think>"])
def test_marks_of_reasoning_are_wrong_where_thinking_is_off(text: str) -> None:
    settings = GenerationSettings(max_new_tokens=8)
    case = Case("c/1", "c", "s", (), (), {}, "A", settings, (), must_pass=False)
    answer = judged_answer(case, text, "stop", 2)
    assert [failure["code"] for failure in answer.detail["failures"]] == ["thought"]


def test_counted_apart_from_errors_and_imputed_like_them() -> None:
    """Many of them are not measured, and some are named."""
    measurement = failures(UNREAD, WRONG, ERRORED, right=197)
    assert measurement.counts.model_dump() == {"total": 200, "scored": 198, "errored": 1, "unreadable": 1}
    assert measurement.causes.branch == {"errored": 1, "unreadable": 1, "wrong": 1}
    assert failure_causes([outcome(0, ERRORED, UNREAD)]).reference == {"unreadable": 1}
    assert measurement.causes.unread == ("c/0 on the branch: which shop is meant cannot be told (end)",)
    few, many = [WRONG], [WRONG] * 20
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
    cut = WRONG.model_copy(update={"detail": {"finish_reason": "length"}})
    measurement = rate(
        share_of("cut_off_rate"), [outcome(n, each) for n, each in enumerate((UNREAD, cut, ERRORED, RIGHT))], cut_off
    )
    assert measurement.counts.model_dump() == {"total": 4, "scored": 3, "errored": 1, "unreadable": 0}
    assert measurement.value == 1 / 3
    # an answer that is cut off after its thoughts has no end either
    assert [unended(each) for each in (cut, UNREAD, ERRORED)] == [1.0, 0.0, None]


def test_nothing_passes_by_a_fixed_prompt_that_cannot_be_read_and_the_reference_s_are_no_canary() -> None:
    assert standing(outcome(0, UNREAD)) is Standing.UNREADABLE
    assert standing(outcome(0, RIGHT, UNREAD)) is Standing.NO_CANARY
    assert why_not_absolute(UNREAD) == "the reference's answer cannot be read in 1 of 1 batches"
    again = {"repeats": [{"score": None, "unreadable": "two readings"}, {"score": 0.0}]}
    assert standing(outcome(0, WRONG.model_copy(update={"detail": again}))) is Standing.UNREADABLE
