"""Hand-labelled answers: what each checker must say of them."""

from typing import Any

import pytest

from canaries.checks import parse_reply, run_checks
from canaries.checks.discount import conclusion

DISCOUNT = {"amounts": {"A": [360, 2040], "B": [2100]}, "decision": "A"}
RIGHT_LINES = "Obchod A: 15 % z 2 400 Kč = 360 Kč, 2 400 − 360 = 2 040 Kč\nObchod B: 2 400 − 300 = 2 100 Kč\n"

DISCOUNT_ANSWERS = [
    (RIGHT_LINES + "Levnější je obchod A.", set()),
    (RIGHT_LINES + "Levnější je obchod B.", {"wrong_conclusion"}),
    (RIGHT_LINES + "Vyjde to nastejno.", {"wrong_conclusion"}),
    (RIGHT_LINES, {"no_conclusion"}),
    (RIGHT_LINES.replace("2 040", "2 140") + "Levnější je obchod A.", {"wrong_amount", "wrong_arithmetic"}),
    (RIGHT_LINES.replace("360", "380") + "Levnější je obchod A.", {"wrong_arithmetic"}),
    (RIGHT_LINES.replace("2 100", "2 000") + "Levnější je obchod B.",
     {"wrong_amount", "wrong_arithmetic", "wrong_conclusion"}),
    # the amounts swapped between the shops are not the right amounts
    ("Obchod A: 2 100 Kč\nObchod B: 2 040 Kč\nLevnější je obchod A.", {"wrong_amount"}),
    # how a large model would write it
    ("**Obchod A:** 2400 Kč × 0,85 = **2040 Kč**\n\n**Obchod B:** 2400 Kč - 300 Kč = **2100 Kč**\n\n"
     "Výhodnější je **obchod A** (o 60 Kč levnější než obchod B).", set()),
    ("- A: sleva je 360,00 Kč, cena 2.040,- Kč\n- B: cena 2\u00a0100\u202fKč\n\nMéně zaplatíte v obchodě A.", set()),
    ("Obchod A stojí 2 040 Kč. Obchod B stojí 2 100 Kč. Obchod A je levnější než obchod B.", set()),
    ("Levnější je obchod B? Spočítejme.\n" + RIGHT_LINES + "Levnější je tedy obchod A.", set()),
    ("", {"wrong_amount", "no_conclusion"}),
]  # fmt: skip

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "member": {"type": "boolean"}},
    "required": ["name", "age", "member"],
    "additionalProperties": False,
}
PERSON = {"object": {"name": "Jiří Říha", "age": 34, "member": True}, "schema": SCHEMA}

JSON_ANSWERS = [
    ('{"name":"Jiří Říha","age":34,"member":true}', set()),
    ('\n{ "member": true, "age": 34,\n "name": "Ji\\u0159\\u00ed \\u0158\\u00edha" }\n', set()),
    ('{"name":"Jiří Říha","age":34,"member":1}', {"schema", "wrong_type"}),
    ('{"name":"Jiří Říha","age":"34","member":true}', {"schema", "wrong_type"}),
    ('{"name":"Jiří Říha","age":34.0,"member":true}', {"wrong_type"}),
    ('{"name":"Jiri Riha","age":34,"member":true}', {"wrong_value"}),
    ('{"name":"Jiří Říha","age":34}', {"schema", "missing_key"}),
    ('{"name":"Jiří Říha","age":34,"member":true,"city":"Brno"}', {"schema", "unexpected_key"}),
    ('{"name":"Jiří Říha","age":34,"age":34,"member":true}', {"duplicate_key"}),
    ('{"name":"Jiří Říha","age":NaN,"member":true}', {"not_json"}),
    ("{'name':'Jiří Říha','age':34,'member':True}", {"not_json"}),
    ('{"name":"Jiří Říha","age":34,"member":true', {"not_json"}),
    ('{"name":"Jiří Říha","age":34,"member":true} Hotovo.', {"not_json"}),
    ('```json\n{"name":"Jiří Říha","age":34,"member":true}\n```', {"fenced"}),
    ('[{"name":"Jiří Říha","age":34,"member":true}]', {"schema", "wrong_type"}),
]  # fmt: skip

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "book", "parameters": {
        "type": "object", "required": ["start", "nights"],
        "properties": {
            "start": {"type": "string", "format": "date"}, "nights": {"type": "integer"},
            "board": {"type": "string", "enum": ["full", "half"]}, "paid": {"type": "boolean"},
            "guests": {"type": "array", "items": {"type": "string"}}}}}},
    {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}},
]  # fmt: skip
BOOKING = {"name": "book", "arguments": {"start": "2026-05-01", "nights": 3, "paid": True, "guests": ["Jana", "Petr"]}}


def _xml(name: str, **arguments: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


GOOD = {"start": "2026-05-01", "nights": "3", "paid": "true", "guests": '["Jana", "Petr"]'}
HERMES = (
    '<tool_call>\n{"name": "book", "arguments": {"start": "2026-05-01", "nights": 3, "paid": true, '
    '"guests": ["Jana", "Petr"]}}\n</tool_call>'
)

TOOL_ANSWERS = [
    (_xml("book", **GOOD), set()),
    ("Rezervuji.\n\n" + _xml("book", **GOOD), set()),
    (HERMES, set()),
    (HERMES.replace("3,", '"3",'), {"schema", "wrong_type"}),
    (_xml("book", **GOOD | {"nights": "4"}), {"wrong_value"}),
    (_xml("book", **GOOD | {"nights": "tři"}), {"schema", "wrong_type"}),
    (_xml("book", **GOOD | {"nights": "3.0"}), {"schema", "wrong_type"}),
    (_xml("book", **GOOD | {"paid": "ano"}), {"schema", "wrong_type"}),
    (_xml("book", **GOOD | {"guests": "Jana, Petr"}), {"schema", "wrong_type"}),
    (_xml("book", **GOOD | {"guests": '["Petr", "Jana"]'}), {"wrong_value"}),
    (_xml("book", **GOOD | {"board": "full"}), {"unexpected_key"}),
    (_xml("book", **GOOD | {"board": "none"}), {"schema", "unexpected_key"}),
    (_xml("book", start="2026-05-01", paid="true", guests=GOOD["guests"]), {"schema", "missing_key"}),
    (_xml("weather", city="Praha"), {"wrong_tool"}),
    (_xml("reserve", **GOOD), {"unknown_tool"}),
    (_xml("book", **GOOD) + _xml("book", **GOOD), {"several_calls"}),
    (_xml("book", **GOOD) + "\nHotovo.", {"text_after_call"}),
    (_xml("book", **GOOD).removesuffix("</tool_call>"), {"unclosed_call"}),
    (_xml("book", **GOOD).replace("</function>", ""), {"malformed_call"}),
    (_xml("book", **GOOD).replace("</parameter>\n<parameter=nights>", "<parameter=nights>"),
     {"unclosed_argument"}),
    (_xml("book", **GOOD).replace("<parameter=paid>", "<parameter=nights>"), {"repeated_argument"}),
    ("<function=book>\n</function>", {"stray_markup"}),
    ("Na to nemám nástroj.", {"no_call"}),
]  # fmt: skip

TEXT_ANSWERS: list[tuple[str, str, dict[str, Any], set[str]]] = [
    ("enum_member", "vysoká", {"value": "vysoká", "options": ["vysoká", "nízká"]}, set()),
    ("enum_member", "nízká\n", {"value": "vysoká", "options": ["vysoká", "nízká"]}, {"wrong_member"}),
    ("enum_member", "vysoka", {"value": "vysoká", "options": ["vysoká", "nízká"]}, {"not_a_member"}),
    ("enum_member", "Závažnost je vysoká.", {"value": "vysoká", "options": ["vysoká", "nízká"]}, {"not_a_member"}),
    ("ordered_list", "A-1, B-2, C-3", {"items": ["A-1", "B-2", "C-3"]}, set()),
    ("ordered_list", "A-1\nB-2\nC-3\n", {"items": ["A-1", "B-2", "C-3"]}, set()),
    ("ordered_list", "A-1, C-3, B-2", {"items": ["A-1", "B-2", "C-3"]}, {"wrong_order"}),
    ("ordered_list", "A-1, B-2", {"items": ["A-1", "B-2", "C-3"]}, {"missing_item"}),
    ("ordered_list", "A-1, B-2, C-4", {"items": ["A-1", "B-2", "C-3"]}, {"missing_item", "unknown_item"}),
    ("ordered_list", "A-1, B-2, B-2, C-3", {"items": ["A-1", "B-2", "C-3"]}, {"repeated_item"}),
    ("exact_lines", "2026-05-01\nŽďár", {"lines": ["2026-05-01", "Žďár"]}, set()),
    ("exact_lines", "2026-05-10\nŽďár", {"lines": ["2026-05-01", "Žďár"]}, {"different_value"}),
    ("exact_lines", "Žďár", {"lines": ["2026-05-01", "Žďár"]}, {"wrong_count", "different_value"}),
    ("exact_lines", "Z\u030cďár", {"lines": ["Žďár"]}, {"different_value"}),
    ("exact_text", "Na to nemám nástroj.\n", {"text": "Na to nemám nástroj."}, set()),
    ("exact_text", "Na to nemám nástroj", {"text": "Na to nemám nástroj."}, {"different_text"}),
    ("no_tool_call", "Na to nemám nástroj.", {}, set()),
    ("no_tool_call", "Zkusím <tool_call>", {}, {"unwanted_call"}),
    ("no_tool_call", _xml("weather", city="Brno"), {}, {"unwanted_call"}),
]  # fmt: skip


def _codes(text: str, check: str, expected: dict[str, Any]) -> set[str]:
    return {failure.code for failure in run_checks(text, [check], expected, TOOLS)}


@pytest.mark.parametrize(("text", "codes"), DISCOUNT_ANSWERS)
def test_discount_answers(text: str, codes: set[str]) -> None:
    assert _codes(text, "discount", DISCOUNT) == codes


@pytest.mark.parametrize(("text", "codes"), JSON_ANSWERS)
def test_json_answers(text: str, codes: set[str]) -> None:
    assert _codes(text, "json", PERSON) == codes


@pytest.mark.parametrize(("text", "codes"), TOOL_ANSWERS)
def test_tool_answers(text: str, codes: set[str]) -> None:
    assert _codes(text, "tool_call", BOOKING) == codes


@pytest.mark.parametrize(("check", "text", "expected", "codes"), TEXT_ANSWERS)
def test_text_answers(check: str, text: str, expected: dict[str, Any], codes: set[str]) -> None:
    assert _codes(text, check, expected) == codes


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        ("Levnější je obchod B.", "B"),
        ("Nejvýhodnější je nákup v obchodě C.", "C"),
        ("V obchodě A stojí 2040 Kč a v obchodě B 2100 Kč, levnější je tedy obchod A.", "A"),
        ("Obchod A je levnější, obchod B je dražší.", "A"),
        ("Méně zaplatíte v obchodě a to v obchodě B.", "B"),
        ("Obě nabídky vyjdou stejně.", "tie"),
        ("Levnější je obchod A.\nVlastně je levnější obchod B.", "B"),
        ("Oba obchody mají slevu.", None),
    ],
)
def test_conclusions(text: str, decided: str | None) -> None:
    assert conclusion(text) == decided


def test_failures_say_where() -> None:
    said = '{"name":"Jiří Říha","age":"34","member":true}'
    places = {failure.place for failure in run_checks(said, ["json"], PERSON)}
    assert places == {"$.age"}
    (failure,) = run_checks("2026-05-10", ["exact_lines"], {"lines": ["2026-05-01"]})
    assert failure.place == "line 1, character 9"


def test_a_wrong_type_is_told_apart_from_a_wrong_value() -> None:
    """`true` is not 1 although Python finds them equal."""
    codes = _codes('{"n":true}', "json", {"object": {"n": 1}})
    assert codes == {"wrong_type"}
    assert _codes('{"n":1}', "json", {"object": {"n": True}}) == {"wrong_type"}


def test_parsing_keeps_prose_and_every_call() -> None:
    reply = parse_reply("Hned.\n" + _xml("weather", city=" Ústí\nnad Labem") + HERMES + " konec")
    assert (reply.before, reply.after) == ("Hned.\n", " konec")
    assert [call.name for call in reply.calls] == ["weather", "book"]
    assert reply.calls[0].arguments == {"city": " Ústí\nnad Labem"}
    assert reply.problems == ()
