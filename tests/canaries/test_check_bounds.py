"""A megabyte of anything is judged soon, whatever it is made of, and its failures stay short and few."""

import pytest

from q36eval.canaries.checks import CHECKS, calls_fit, decisions, run_checks
from q36eval.canaries.checks.base import MAX_FAILURES
from tests.canaries.hand_labelled import labelled_answers

ASKED = {check: answer for answer in labelled_answers() for check in answer.checks}
MEGABYTE = 1_000_000
CALLS = ["<tool_call>", "<tool_call><function=f><parameter=a>", "<tool_call><function=f><parameter=a></tool_call>"]
JSON = ["[1,", '{"a":', '{"a":1},', '<tool_call>{"name":"book","arguments":{}}</tool_call>']
WORDS = ["1 - 1 = 2 ", "Obchod A ", "levnější ", "než ", "ano ", "- a\n", "a\u0316\u0301", "\u0316\u0301"]
UNITS = [*'9 \n{"\\.-漢\ud800', *CALLS, *JSON, *WORDS]
CHARACTERS = 45_000
"""Linear checks take hundredths of a second with so many; the quadratic ones that these texts found, up to minutes."""


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_long_texts_of_one_unit_are_judged_and_told_briefly(unit: str) -> None:
    filler = (unit * (CHARACTERS // len(unit) + 1))[:CHARACTERS]
    text = f"{filler} Obchod A: 2 400 - {filler} = 5.\nlevnější je obchod B</parameter></function></tool_call>"
    for check, question in ASKED.items():
        failures = run_checks(text, [check], question.expected, question.tools)
        assert len(failures) <= MAX_FAILURES + 1
        assert all(len(failure.message) < 1000 for failure in failures)
    calls_fit(text, ASKED["tool_call"].tools)


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_a_megabyte_of_everything_is_judged(check: str) -> None:
    """Everything at once: prose, JSON, calls, sums, one long line of digits, deep nesting."""
    part = "".join(unit * 40 for unit in UNITS) + "9" * 5_000 + "[" * 5_000
    text = (part * (MEGABYTE // len(part) + 1))[:MEGABYTE]
    question = ASKED[check]
    assert len(run_checks(text, [check], question.expected, question.tools)) <= MAX_FAILURES + 1


def test_a_right_answer_of_a_megabyte_gives_its_decisions() -> None:
    """White space between tokens is free, so a right answer can be as long as anyone likes."""
    text = '{"a":' + " " * MEGABYTE + "[1, 2]" + "\n" * MEGABYTE + "}"
    decided = decisions(text, ["json"], {"object": {"a": [1, 2]}})
    assert [text[decision.start : decision.end] for decision in decided] == ['"a"', "1", ",", "2", "]", "}"]


def test_many_failures_are_cut_short_and_said_to_be() -> None:
    text = "{" + ",".join(f'"key{number}":1' for number in range(1000)) + "}"
    failures = run_checks(text, ["json"], {"object": {}})
    assert len(failures) == MAX_FAILURES + 1
    assert failures[-1].code == "more"


def test_a_huge_array_is_not_validated() -> None:
    """jsonschema takes a minute for it, and compares every pair of elements that must be unique."""
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True}}}
    expected = {"object": {"a": [1]}, "schema": schema}
    for elements in ("1," * 300_000 + "1", "1,1.0"):
        failures = run_checks(f'{{"a":[{elements}]}}', ["json"], expected)
        assert {failure.code for failure in failures} == {"schema", "wrong_length"}
    assert [failure.code for failure in run_checks('{"a":[1,2]}', ["json"], expected)] == ["wrong_length"]
