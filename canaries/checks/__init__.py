"""Checks: pure functions of (text, expected, offered tools) that return an answer's faults and their positions.

| file | content |
|---|---|
| `base` | `Check`, `Failure`, `Decision`, and the display of texts in messages |
| `text`, `patterns` | the checks of exact text and code; a regular expression with a limit of time |
| `json_values`, `json_schema`, `json_answer` | strict JSON and its comparison by type; JSON Schema; the JSON checks |
| `tool_parser`, `tool_calls` | tool calls as they are written and typed; the tool-call checks |
| `value` | short answers: one value, and two prices with a conclusion on the last line |
| `prose`, `language`, `grounding`, `free_form` | prose taken apart; its language; its claims; `style` and `stable` |
| `discount/` | Czech price comparisons: each shop's final price and the conclusion |

A check imports `base` and its parsers, never the rest of `canaries`, an engine or torch, and does no I/O.

To add a check: write a model of its expected values (`Expected`), a function that yields `Failure`s, and, if its right
answers contain decisions, one that returns `Decision`s; make a `Check` of them in the file of that subject and list it
in `CHECKS`. Then explain it in docs/canaries.md, and add right and wrong answers with labels to
tests/canaries/labelled.
"""

from collections.abc import Sequence
from typing import Any

from q36eval.canaries.checks.base import (
    Check,
    Decision,
    Failure,
    NotJudgedError,
    Outcome,
    Tools,
    outcome_of,
)
from q36eval.canaries.checks.discount import WRONG_CONCLUSION, discount
from q36eval.canaries.checks.free_form import stable, style
from q36eval.canaries.checks.json_answer import json_answer, json_in_prose, json_object
from q36eval.canaries.checks.json_schema import check_json_value
from q36eval.canaries.checks.patterns import pattern
from q36eval.canaries.checks.prose import first_loop
from q36eval.canaries.checks.text import enum_member, exact_code, exact_lines, exact_text, ordered_list
from q36eval.canaries.checks.tool_calls import no_tool_call, tool_call, tool_calls
from q36eval.canaries.checks.tool_parser import (
    QWEN3_XML,
    Call,
    Reply,
    calls_fit,
    check_tools,
    parse_reply,
    same_calls,
)
from q36eval.canaries.checks.value import price_line, value

CHECKS_VERSION = 6
"""Part of the suite's hash: raised with every change by which some text is judged differently.

Captures of another version belong to other questions, and are made again. A change of code alone is not such a change:
`tests/canaries/test_checks_version.py` judges every labelled answer again, and fails if the outcome, the codes, the
places or the decisions change and the version does not. The changes by version:

1. The checks of 2026-11-21.
2. A right answer's decisions are recorded (their positions, and the wrong alternatives).
3. References of a schema are checked, patterns are bounded, and more wordings that decide for a shop are read.
4. A third outcome, unreadable; price comparisons are read claim by claim; so are the claims of prose around JSON and
   calls.
5. Price comparisons are judged by each shop's final price and by the conclusion, as last stated; a mark of reasoning is
   wrong in any answer if thinking is off; lingua detects the language of sentences without function words; a town is
   also mentioned by its adjective, and by no other word with the same beginning.
6. In price comparisons, a later correction or hedge is not passed over, a last sentence about a shop that is not
   understood is unreadable, and a final price that is swapped when stated again is wrong.
"""

CHECKS: dict[str, Check[Any]] = {
    check.name: check
    for check in (
        exact_text,
        exact_lines,
        enum_member,
        ordered_list,
        json_answer,
        json_object,
        json_in_prose,
        tool_call,
        tool_calls,
        no_tool_call,
        discount,
        exact_code,
        style,
        stable,
        pattern,
        value,
        price_line,
    )
}
"""Every check by its name in specifications."""


def run_checks(text: str, names: Sequence[str], expected: dict[str, Any], tools: Tools = ()) -> list[Failure]:
    """All failures of `text` under the named checks; `outcome_of` gives the outcome; without any it is right.

    Raises:
        KeyError: an unknown check.
        pydantic.ValidationError: `expected` lacks a value that a check needs. Never because of `text`.
        NotJudgedError: a pattern timed out on `text`, so that it is not judged.
    """
    return [failure for name in names for failure in CHECKS[name](text, expected, tools)]


def decisions(text: str, names: Sequence[str], expected: dict[str, Any], tools: Tools = ()) -> list[Decision]:
    """The choices that made `text` right under the named checks, in order of place.

    A check that `text` fails gives none.

    Raises:
        KeyError: an unknown check.
        pydantic.ValidationError: `expected` lacks a value that a check needs. Never because of `text`.
        NotJudgedError: a check timed out.
    """
    made = [decision for name in names for decision in CHECKS[name].decisions(text, expected, tools)]
    return sorted(dict.fromkeys(made), key=lambda decision: (decision.start, decision.end))


__all__ = [
    "CHECKS",
    "CHECKS_VERSION",
    "QWEN3_XML",
    "WRONG_CONCLUSION",
    "Call",
    "Decision",
    "Failure",
    "NotJudgedError",
    "Outcome",
    "Reply",
    "calls_fit",
    "check_json_value",
    "check_tools",
    "decisions",
    "first_loop",
    "outcome_of",
    "parse_reply",
    "run_checks",
    "same_calls",
]
