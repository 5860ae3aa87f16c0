"""A megabyte of anything is judged soon, whatever it is made of, and its failures stay short and few."""

import time

import pytest

from canaries.checks import CHECKS, MAX_FAILURES, call_facts, decisions, run_checks
from tests.canaries.labelled_answers import labelled_answers

ASKED = {check: answer for answer in labelled_answers() for check in answer.checks}
MEGABYTE = 1_000_000
UNITS = [
    "9", " ", "\n", "{", "[1,", '{"a":', '"', "\\", "<tool_call>", "<tool_call><function=f><parameter=a>",
    "<tool_call><function=f><parameter=a></tool_call>", '<tool_call>{"name":"book","arguments":{}}</tool_call>',
    "1 - 1 = 2 ", "Obchod A ", "levnější ", "než ", "a\u0316\u0301", ".", "-", "ano ", "- a\n", "漢", '{"a":1},',
    "\ud800", "\u0316\u0301",
]  # fmt: skip
CHARACTERS = 45_000
CPU_SECONDS = 1.0
"""Linear checks take some hundredths of a second, at most three tenths; quadratic ones took from three to minutes."""


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    filler = (unit * (CHARACTERS // len(unit) + 1))[:CHARACTERS]
    text = f"{filler} Obchod A: 2 400 - {filler} = 5.\nlevnější je obchod B</parameter></function></tool_call>"
    for check, asked in ASKED.items():
        began = time.process_time()
        failures = run_checks(text, [check], asked.expected, asked.tools)
        spent = time.process_time() - began
        assert spent < CPU_SECONDS, f"{check} took {spent:.1f} s"
        assert len(failures) <= MAX_FAILURES + 1
        assert all(len(failure.message) < 1000 for failure in failures)
    call_facts(text, ASKED["tool_call"].tools)


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_a_megabyte_is_judged_in_a_second_or_two(check: str) -> None:
    """Everything at once: prose, JSON, calls, sums, one long line of digits, deep nesting."""
    part = "".join(unit * 40 for unit in UNITS) + "9" * 5_000 + "[" * 5_000
    text = (part * (MEGABYTE // len(part) + 1))[:MEGABYTE]
    asked = ASKED[check]
    began = time.process_time()
    run_checks(text, [check], asked.expected, asked.tools)
    assert time.process_time() - began < 2.0


def test_a_right_answer_of_a_megabyte_gives_its_decisions_soon() -> None:
    """White space between tokens is free, so a right answer can be as long as anyone likes."""
    text = '{"a":' + " " * MEGABYTE + "[1, 2]" + "\n" * MEGABYTE + "}"
    began = time.process_time()
    found = decisions(text, ["json"], {"object": {"a": [1, 2]}})
    assert [text[decision.start : decision.end] for decision in found] == ['"a"', "1", ",", "2", "]", "}"]
    assert time.process_time() - began < 1.0


def test_many_failures_are_cut_short_and_said_to_be() -> None:
    text = "{" + ",".join(f'"key{number}":1' for number in range(1000)) + "}"
    failures = run_checks(text, ["json"], {"object": {}})
    assert len(failures) == MAX_FAILURES + 1
    assert failures[-1].code == "more"


def test_a_huge_array_is_not_validated_and_unequal_elements_are_told_in_one_pass() -> None:
    """jsonschema takes a minute for the first and compares every pair of the second."""
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True}}}
    began = time.process_time()
    failures = run_checks('{"a":[' + "1," * 300_000 + "1]}", ["json"], {"object": {"a": [1]}, "schema": schema})
    assert {failure.code for failure in failures} == {"schema", "wrong_length"}
    assert "not validated" in failures[0].message
    schema = {"properties": {"a": {"uniqueItems": True}}}
    elements = ",".join(f'{{"b":{number}}}' for number in range(4_000))
    failures = run_checks(f'{{"a":[{elements}]}}', ["json"], {"object": {"a": []}, "schema": schema})
    assert [failure.code for failure in failures] == ["wrong_length"]
    failures = run_checks(f'{{"a":[{elements},{{"b":1.0}}]}}', ["json"], {"object": {"a": []}, "schema": schema})
    assert [failure.code for failure in failures] == ["schema", "wrong_length"]
    assert time.process_time() - began < 3.0
