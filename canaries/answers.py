"""The judged answer of one deployment to one canary: its faults, its smallest margin, and the point of divergence."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
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
"""Checks of answers that may call tools: these report whether a call was made, and whether it meets its schema."""

SCORES = {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0, Outcome.UNREADABLE: None}
"""The score of an answer. An unreadable one is neither right nor wrong."""

KEPT = 8192
"""Judgements in memory, more than a run's answers of both sides: it needs each several times."""

SHOWN_TOKEN_CHARACTERS = 40
"""The maximum length of a token's text in a margin or a choice."""


def answer_of(case: Case, text: str) -> tuple[int, str]:
    """The start of the relevant part of a raw answer, and that part: all of it, or the text after the reasoning.

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
    """The faults of a raw answer. Reasoning is cut off first, or its marks are wrong if thinking is off; an unfinished
    answer is wrong.

    Raises:
        NotJudgedError: a check was not finished, so that the answer is unknown.
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


@lru_cache(KEPT)
def right_decisions(case: Case, text: str) -> list[Decision]:
    """The decisions in a right raw answer, by its checks."""
    start, answer = answer_of(case, text)
    decided = decisions(answer, case.checks, case.expected, case.tools)
    return [Decision(one.kind, one.start + start, one.end + start, one.wrong) for one in decided]


def judged_answer(case: Case, text: str, finish_reason: str, tokens: int) -> Answer:
    """An answer with its score (1 right, 0 wrong; none if a check was unfinished or cannot read it) and failures."""
    try:
        return _judged(case, text, finish_reason, tokens)
    except NotJudgedError as error:  # which is not kept: the next time the check may finish
        return Answer(score=None, text=storable(text), error=f"not judged: {error}")


@lru_cache(KEPT)
def _judged(case: Case, text: str, finish_reason: str, tokens: int) -> Answer:
    failures = judge(case, text, finish_reason)
    calls = _of_calls(case, text)
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
    """Whether its calls meet their tools' schemas; nothing for an answer that may not call any."""
    if not TOOL_CHECKS & set(case.checks):
        return {}
    _, answer = answer_of(case, text)
    return {"schema_ok": calls_fit(answer, case.tools, case.expected.get("tool_format", QWEN3_XML))}


def branch_answer(case: Case, error: str | None, generated: Generated | None) -> Answer:
    """The branch's answer, errored if the engine gave none."""
    if error is not None or generated is None:
        return Answer(score=None, error=error or "the engine returned no result")
    return judged_answer(case, generated.text, generated.finish_reason, len(generated.token_ids))


def reference_answer(case: Case, reference: Digest, *, again: bool = True) -> Answer:
    """The reference's captured answer, with those from other batches; a right one was evaluated `again`."""
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
    """The stored part of an answer to a repeated question."""
    return {"rows": generated.rows, "text": storable(generated.text), "finish_reason": generated.finish_reason}


def repeats_of(case: Case, repeats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The repeated answers, judged. `score` is None if one could not be judged."""
    judged_repeats = []
    for repeat in repeats:
        judged = judged_answer(case, repeat["text"], repeat["finish_reason"], 0)
        unreadable = {} if judged.unreadable is None else {"unreadable": judged.unreadable}
        judged_repeats.append({"rows": repeat["rows"], "score": judged.score, "text": repeat["text"]} | unreadable)
    return judged_repeats


def with_detail(answer: Answer, detail: Mapping[str, Any]) -> Answer:
    """The answer with additional details."""
    return answer.model_copy(update={"detail": answer.detail | dict(detail)})


def margin_of(
    tokens: Sequence[DecisiveToken], teacher: Teacher, text_of: Callable[[int], str]
) -> dict[str, dict[str, Any]]:
    """The smallest decisive margin, in nats, and its position; nothing for an answer without decisive tokens."""
    if not tokens:
        return {}
    # NaN sorts first: it is the worst margin
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
    """One deployment's token at the first difference of two answers, and its alternatives; nothing without a
    difference."""
    if parting is None or parting >= len(teacher.choices):
        return {}
    top = [[text_of(token), round(value, 4)] for token, value in teacher.choices[parting]]
    token = text_of(said[parting]) if parting < len(said) else ""
    return {"divergence": {"position": parting, "said": token, "top": top}}
