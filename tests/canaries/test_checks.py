"""What labelled answers cannot say: decisions, calls' facts and faults, specifications that are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from q36eval.canaries.checks import (
    NotJudgedError,
    calls_fit,
    check_tools,
    decisions,
    run_checks,
    same_calls,
)
from q36eval.canaries.specification import load_specs

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
STAY = {
    "nights": {"type": "integer"},
    "board": {"type": "string", "enum": ["full", "half"]},
    "paid": {"type": "boolean"},
    "guests": {"type": "array", "items": {"type": "string"}},
}


def tool(name: str, required: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "required": [required], "properties": properties} | more
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("book", "nights", STAY), tool("weather", "city", {"city": {"type": "string"}})]
ARGUMENTS = {"nights": 3, "board": "half", "paid": True, "guests": ["Jana", "Petr"]}
BOOKING = {"name": "book", "arguments": ARGUMENTS}


def _xml(name: str, **arguments: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


RIGHT = _xml("book", nights="3", board="half", paid="true", guests='["Jana", "Petr"]')
HERMES = (
    '<tool_call>\n{"name": "book", "arguments": {"nights": 3, "board": "half", "paid": true, '
    '"guests": ["Jana", "Petr"]}}\n</tool_call>'
)


OFFERS = {
    "offers": {
        "A": {"price": 2400, "discounts": [{"percent": 15}]},
        "B": {"price": 2400, "discounts": [{"amount": 300}]},
    }
}


def _chosen(text: str, checks: list[str], expected: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    decided = decisions(text, checks, expected, TOOLS)
    return [(decision.kind, text[decision.start : decision.end], decision.wrong) for decision in decided]


@pytest.mark.parametrize(
    ("conclusion_sentence", "place", "wrong"),
    [
        ("Levnější je obchod A.", "A.", ("B",)),
        ("Výhodnější je **obchod A** (o 60 Kč levnější než obchod B).", "A** (", ("B",)),
        ("Obchod A je levnější než obchod B.", "A je", ("B",)),
        ("Levnější není obchod B, ale obchod A.", "A.", ("B",)),
        ("Obchod B je o 60 Kč dražší než obchod A.", "B je", ("A",)),
        ("Levne\u030cjs\u030ci\u0301 je \\(\\textbf{A}\\).", "A}", ("B",)),
    ],
)
def test_the_conclusion_is_decided_where_it_was_found(
    conclusion_sentence: str, place: str, wrong: tuple[str, ...]
) -> None:
    """The amounts too, in a wording that is not the sandbox's, with characters that reading takes away."""
    text = f"**Obchod A:** 2400 Kč × 0,85 = **2 040** Kč\nObchod B: 2\u00a0100 Kč\n{conclusion_sentence}"
    decided = decisions(text, ["discount"], OFFERS)
    assert [text[decision.start : decision.end] for decision in decided if decision.kind == "amount"] == [
        "2 040",
        "2\u00a0100",
    ]
    last = decided[-1]
    assert (last.kind, last.wrong, last.end - last.start) == ("conclusion", wrong, 1)
    assert text[last.start :].startswith(place)


def test_a_tie_is_decided_where_its_sentence_begins() -> None:
    text = "Obchod A: 300 Kč\nObchod B: 300 Kč\n- Vyjde to nastejno."
    expected = {"offers": {shop: {"price": 400, "discounts": [{"amount": 100}]} for shop in "AB"}}
    decided = [each for each in _chosen(text, ["discount"], expected) if each[0] == "conclusion"]
    assert decided == [("conclusion", "Vyjde to nastejno", ("Levnější je obchod A", "Levnější je obchod B"))]


@pytest.mark.parametrize(("text", "tool_format"), [(RIGHT, "qwen3_xml"), (HERMES, "hermes")])
def test_decisions_of_a_call(text: str, tool_format: str) -> None:
    decided = _chosen(text, ["tool_call"], BOOKING | {"tool_format": tool_format})
    assert decided[:2] == [("call", "<tool_call>", ()), ("tool", "book", ("weather",))]
    others = {
        said.strip('"'): [wrong.strip('"') for wrong in wrongs] for kind, said, wrongs in decided if kind == "argument"
    }
    assert others == {"3": [], "half": ["full"], "true": ["false"], "Jana": [], "Petr": []}
    assert decided[-1] in [("close", "</function>", ("<parameter=",)), ("close", "}", ())]


def test_where_no_call_is_right_the_first_word_decides_against_one() -> None:
    assert _chosen("\nNa to nemám nástroj.", ["no_tool_call"], {}) == [("call", "Na", ("<tool_call>",))]


def test_decisions_of_json_leave_out_what_may_come_in_any_order() -> None:
    text = 'Zde: {"a": 1, "b": {"c": true}}'
    assert _chosen(text, ["json_in_prose"], {"object": {"b": {"c": True}, "a": 1}}) == [
        ("value", "1", ()),
        ("close", ",", ("}",)),
        ("key", '"b"', ()),
        ("key", '"c"', ()),
        ("value", "true", ("false",)),
        ("close", "}", ()),
        ("close", "}", ()),
    ]


def test_a_wrong_answer_has_no_decisions_and_every_fixed_prompt_has_some() -> None:
    assert decisions("B", ["enum_member"], {"value": "A", "options": ["A", "B"]}) == []
    for spec in load_specs():
        for prompt in spec.must_pass or ():
            assert decisions(prompt.answer, spec.checks, prompt.expected, prompt.tools), prompt.name


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        (RIGHT, True),
        (RIGHT + HERMES, True),
        ("Hned.\n" + RIGHT + "\nHotovo.", True),
        (RIGHT.replace("3", "tři"), False),
        (RIGHT.replace("half", "none"), False),
        (RIGHT.replace("=book", "=reserve"), False),
        (RIGHT.removesuffix("</tool_call>"), False),
        (RIGHT + HERMES.replace("3", '"3"'), False),
        ("<function=book>\n</function>", False),
        ("Na to nemám nástroj.", None),
    ],
)
def test_calls_fit_their_schemas(text: str, fit: bool | None) -> None:
    assert calls_fit(text, TOOLS) is fit


SERVED = {"name": "book", "arguments": ARGUMENTS}
AS_TEXT = '{"nights": 3.0, "board": "half", "paid": true, "guests": ["Jana", "Petr"]}'


@pytest.mark.parametrize(
    ("text", "served", "same"),
    [
        (RIGHT, [SERVED], True),
        (RIGHT, [{"type": "function", "function": {"name": "book", "arguments": AS_TEXT}}], True),
        # a known server's parser hands arrays on as text
        (RIGHT, [{"name": "book", "arguments": ARGUMENTS | {"guests": '["Jana", "Petr"]'}}], False),
        (RIGHT, [{"name": "book", "arguments": ARGUMENTS | {"paid": 1}}], False),
        (RIGHT, [{"name": "book", "arguments": "{"}], False),
        (RIGHT, [SERVED, SERVED], False),
        ("Na to nemám nástroj.", [], True),
        ("Na to nemám nástroj.", [SERVED], False),
    ],
)
def test_a_servers_parser_made_the_calls_of_the_text_or_not(text: str, served: Any, same: bool) -> None:
    assert same_calls(text, TOOLS, served) is same


@pytest.mark.parametrize("row", REFUSED["specifications"], ids=lambda row: row["sentence"])
def test_a_specification_that_cannot_be_used_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=row["sentence"]):
        run_checks("", [row["check"]], row["expected"])


@pytest.mark.parametrize("row", REFUSED["tools"], ids=lambda row: row["sentence"])
def test_tools_that_no_call_could_be_judged_by_are_refused(row: dict[str, Any]) -> None:
    check_tools(TOOLS)
    with pytest.raises(ValueError, match=row["sentence"]):
        check_tools(row["tools"])


@pytest.mark.parametrize(
    ("check", "text", "expected"),
    [
        ("pattern", "a" * 40 + "!", {"pattern": {"must_match": "^(a|a)+$"}}),
        (
            "json",
            f'{{"a":"{"a" * 40}!"}}',
            {"object": {"a": "a"}, "schema": {"properties": {"a": {"pattern": "^(a|a)+$"}}}},
        ),
    ],
)
def test_a_pattern_that_backtracks_for_ever_judges_nothing(
    check: str, text: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("q36eval.canaries.checks.patterns.PATTERN_SECONDS", 0.1)
    with pytest.raises(NotJudgedError, match="ran out of"):
        run_checks(text, [check], expected)
