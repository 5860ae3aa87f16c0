"""What one deployment answered to one canary, judged: what was wrong with it, its least margin, where answers part."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from q36eval.canaries.cases import Case
from q36eval.canaries.checks import (
    QWEN3_XML,
    Decision,
    Failure,
    NotJudgedError,
    Outcome,
    calls_fit,
    decisions,
    first_loop,
    outcome_of,
    run_checks,
)
from q36eval.canaries.margins import DecisiveToken, Teacher
from q36eval.engines.base import Generated
from q36eval.inert_text import storable
from q36eval.probes import Digest
from q36eval.records import Answer

THINK_START, THINK_END = "<think>", "</think>"
CHANNEL, FINAL = "<|channel|>", "<|channel|>final<|message|>"
_ANALYSIS = re.compile(r"<\|channel\|>analysis<\|message\|>(?:(?!<\|channel\|>).)*?<\|end\|>", re.DOTALL)
"""A thought in harmony, the format of GPT-OSS, whose answers are messages in channels."""
TOOL_CHECKS = frozenset({"tool_call", "tool_calls", "no_tool_call"})
"""Checks of answers that may call tools: whether a call was made, and by its schema, is told of them."""

SCORES = {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0, Outcome.UNREADABLE: None}
"""What an answer counts. One that cannot be read is neither right nor wrong."""

SHOWN_TOKEN_CHARACTERS = 40
"""A token's text in a margin or a choice is cut after so many characters."""


def answer_of(case: Case, text: str) -> tuple[int, str]:
    """Where in a raw answer that what counts begins, and that: all of it, or what follows the reasoning.

    An answer whose reasoning never ends has none: its end, and the empty text. In harmony it is the message in the
    channel `final`, or the messages after the last thought.
    """
    if CHANNEL in text:
        thoughts = [thought.end() for thought in _ANALYSIS.finditer(text)]
        start = thoughts[-1] if thoughts else 0
        final = text.find(FINAL, start)
        start = final + len(FINAL) if final >= 0 else start
        unended = final < 0 and text.startswith(f"{CHANNEL}analysis<|message|>", text.find(CHANNEL, start))
        return (len(text), "") if unended else (start, text[start:])
    if not case.generation.enable_thinking:
        return 0, text
    _, end, answer = text.partition(THINK_END)
    return (len(text) - len(answer), answer) if end else (len(text), "")


def judge(case: Case, text: str, finish_reason: str) -> list[Failure]:
    """What is wrong with a raw answer. Reasoning is cut off first, or its marks are wrong if thinking is off; an answer
    that never ended is wrong.

    Raises:
        NotJudgedError: a check could not be finished, so that nothing is known of the answer.
    """
    failures = []
    if finish_reason == "length":
        budget = case.generation.max_new_tokens
        failures.append(Failure("generation", "cut_off", "end", f"no end within {budget} tokens"))
    mark = next((mark for mark in (THINK_START, THINK_END) if mark in text), None)
    if mark is not None and not case.generation.enable_thinking:
        failures.append(Failure("generation", "thought", "answer", f"{mark} is in the answer, and thinking is off"))
    if case.generation.enable_thinking and THINK_END not in text and CHANNEL not in text:
        message = f"the reasoning never ends with {THINK_END}"
        return [*failures, Failure("generation", "no_answer", "end", message)]
    _, answer = answer_of(case, text)
    return failures + run_checks(answer, case.checks, case.expected, case.tools)


def right_decisions(case: Case, text: str) -> list[Decision]:
    """Where a right raw answer decides, by its checks."""
    start, answer = answer_of(case, text)
    decided = decisions(answer, case.checks, case.expected, case.tools)
    return [Decision(one.kind, one.start + start, one.end + start, one.wrong) for one in decided]


def judged_answer(case: Case, text: str, finish_reason: str, tokens: int) -> Answer:
    """An answer with its score (1 right, 0 wrong; none where a check could not be finished or cannot tell) and why."""
    try:
        failures = judge(case, text, finish_reason)
        calls = _of_calls(case, text)
    except NotJudgedError as error:
        return Answer(score=None, text=storable(text), error=f"not judged: {error}")
    detail: dict[str, Any] = {
        "failures": [failure.as_dict() for failure in failures],
        "finish_reason": finish_reason,
        "tokens": tokens,
    }
    if case.generation.enable_thinking:
        detail |= {"loops": first_loop(text) is not None, "budget": case.generation.max_new_tokens}
    score, unreadable = SCORES[outcome_of(failures)], None
    if score is None:
        unreadable = "; ".join(f"{failure.message} ({failure.place})" for failure in failures)
    return Answer(score=score, text=storable(text), unreadable=unreadable, detail=detail | calls)


def _of_calls(case: Case, text: str) -> dict[str, Any]:
    """Whether the calls that it makes meet their tools' schemas; nothing of an answer that may not call any."""
    if not TOOL_CHECKS & set(case.checks):
        return {}
    _, answer = answer_of(case, text)
    return {"schema_ok": calls_fit(answer, case.tools, case.expected.get("tool_format", QWEN3_XML))}


def branch_answer(case: Case, error: str | None, generated: Generated | None) -> Answer:
    """The branch's answer, errored where the engine gave none."""
    if error is not None or generated is None:
        return Answer(score=None, error=error or "the engine returned no result")
    return judged_answer(case, generated.text, generated.finish_reason, len(generated.token_ids))


def reference_answer(case: Case, reference: Digest, *, again: bool = True) -> Answer:
    """The reference's captured answer, with those that it gave in other batches; a right one was asked `again`."""
    if reference.error is not None:
        return Answer(score=None, error=reference.error)
    values = reference.values
    answer = judged_answer(case, values["text"], values["finish_reason"], len(values["token_ids"]))
    repeats = values.get("repeats")
    if again and case.must_pass and not repeats and answer.score == 1.0:
        return Answer(
            score=None,
            error="the reference's answers in other batches are missing",
        )
    return with_detail(answer, {"repeats": repeats_of(case, repeats)}) if repeats else answer


def repeat_of(generated: Generated) -> dict[str, Any]:
    """What is kept of an answer to a question that is asked again."""
    return {"rows": generated.rows, "text": storable(generated.text), "finish_reason": generated.finish_reason}


def repeats_of(case: Case, repeats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The further answers, judged. `score` is None where one could not be."""
    judged_repeats = []
    for repeat in repeats:
        judged = judged_answer(case, repeat["text"], repeat["finish_reason"], 0)
        unreadable = {} if judged.unreadable is None else {"unreadable": judged.unreadable}
        judged_repeats.append({"rows": repeat["rows"], "score": judged.score, "text": repeat["text"]} | unreadable)
    return judged_repeats


def with_detail(answer: Answer, detail: Mapping[str, Any]) -> Answer:
    """The answer with more known of it."""
    return answer.model_copy(update={"detail": answer.detail | dict(detail)})


def margin_of(
    tokens: Sequence[DecisiveToken], teacher: Teacher, text_of: Callable[[int], str]
) -> dict[str, dict[str, Any]]:
    """The least decisive margin, in nats, and where it is; nothing where an answer has no decisive token."""
    if not tokens:
        return {}
    # a margin that is no number sorts first: it is the worst that a margin can be
    at = min(range(len(tokens)), key=lambda n: (teacher.margins[n] == teacher.margins[n], teacher.margins[n]))
    token = tokens[at]
    return {
        "margin": {
            "nats": teacher.margins[at],
            "decision": token.decision,
            "right": text_of(token.right),
            "wrong": text_of(teacher.best_wrong[at]),
            "position": token.position,
        }
    }


def divergence_of(
    parting: int | None, said: Sequence[int], teacher: Teacher, text_of: Callable[[int], str]
) -> dict[str, dict[str, Any]]:
    """What one deployment said and would have said at the first token where two answers part; nothing where none is."""
    if parting is None or parting >= len(teacher.choices):
        return {}
    top = [[text_of(token), round(value, 4)] for token, value in teacher.choices[parting]]
    token = text_of(said[parting]) if parting < len(said) else ""
    return {"divergence": {"position": parting, "said": token, "top": top}}
