"""What holds of every text: no checker raises, and a right structured answer with one character changed is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from q36eval.canaries.checks import calls_fit, decisions, run_checks
from tests.canaries.hand_labelled import labelled_answers
from tests.profiles import sized

ASKED = {check: answer for answer in labelled_answers() for check in answer.checks}
DATA = yaml.safe_load(Path(__file__).with_name("spellings.yaml").read_text(encoding="utf-8"))
TAGS = ["<tool_call>", "</tool_call>", "<function=", "<function=book>", "</function>", "<parameter=a>", "</parameter>"]
JSON = [*'{}[]":, \n', "\\u", "\\ud800", "NaN", "-Infinity", "1e999", "9" * 5000, "true", "null", "```json\n", "```"]
ODD = ["−", "=", "0.", "²", "٣", "\u0000", "\ud800", "0,123,456", "{,}", "\\text{"]
FRAGMENTS = st.sampled_from([*TAGS, *JSON, *DATA["words"], *ODD])
TEXTS = st.one_of(st.text(), st.lists(st.one_of(FRAGMENTS, st.text(max_size=4)), max_size=25).map("".join))


@pytest.mark.long
@settings(max_examples=sized(25, 100), deadline=None)
@given(text=TEXTS)
@example(text="[" * 100_000)
@example(text='{"a":' * 50_000)
@example(text="9" * 100_000)
@example(text="1 - 0 / 0 = 5, 0 % z 0 = 1, 1,2,3 = 4, 5 × = 6")
@example(text='{"name":{"name":[' * 300)
@example(text="0.000,0 word \ud800")
def test_no_text_makes_a_checker_raise_or_gives_what_cannot_be_stored(text: str) -> None:
    for check, question in ASKED.items():
        failures = run_checks(text, [check], question.expected, question.tools)
        json.dumps([failure.as_dict() for failure in failures], ensure_ascii=False).encode("utf-8")
        assert all(len(failure.message) < 1000 and len(failure.place) < 1000 for failure in failures)
        assert bool(failures) or decisions(text, [check], question.expected, question.tools) is not None
    calls_fit(text, ASKED["tool_call"].tools)


EDITED_INTO = list('{}[]":, \n\t\\/0123456789.-+eEtruefalsn<>=_ABCabcěÁ\u0301\u00a0')
EDITS = st.tuples(
    st.sampled_from(["replace", "delete", "insert"]),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(EDITED_INTO), st.characters()),
)


def edited(text: str, edit: tuple[str, float, str], first: int = 0) -> str:
    """`text` with one character replaced, deleted or inserted, not before the character `first`."""
    kind, where, new = edit
    at = first + int(where * (len(text) - first))
    return text[:at] + ("" if kind == "delete" else new) + text[at + (kind != "insert") :]


def typed(value: Any) -> Any:
    """`value` so that 1 and true differ, and 1 and 1.0 do not."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return ("number" if isinstance(value, float) else type(value).__name__.replace("int", "number"), value)


def means(text: str, wanted: Any) -> bool:
    """Whether another JSON parser than the checker's reads `wanted`, types included."""
    try:
        return bool(typed(from_json(text.encode(), allow_inf_nan=False)) == typed(wanted))
    except (ValueError, UnicodeEncodeError):
        return False


DOCUMENT = {
    "name": 'Jiří "Říha"\n',
    "age": 34,
    "price": 19.5,
    "tags": ["a", "", None, True],
    "inner": {"x": -1, "y": []},
}
SPELLINGS = [
    json.dumps(DOCUMENT, ensure_ascii=False),
    json.dumps(DOCUMENT, indent=2),
    json.dumps(DOCUMENT, ensure_ascii=False, separators=(",", ":")),
]


@pytest.mark.parametrize(("check", "around"), [("json", "{}"), ("json_in_prose", "Zde: {} (konec)")])
@settings(max_examples=sized(50, 200), deadline=None)
@given(spelling=st.sampled_from(SPELLINGS), edit=EDITS)
def test_json_with_one_character_changed_passes_only_where_it_means_the_same(
    check: str, around: str, spelling: str, edit: tuple[str, float, str]
) -> None:
    changed = edited(spelling, edit)
    if check == "json" or (changed[0] == "{" and changed[-1] == "}"):
        passes = not run_checks(around.replace("{}", changed), [check], {"object": DOCUMENT})
        assert passes == means(changed.strip(), DOCUMENT), changed


CALL, ARGUMENTS = DATA["call"], DATA["arguments"]
_RIGHT_CALL = re.compile(
    r"(?P<before>.*?)<tool_call>\s*<function=book>"
    r"\s*<parameter=start>\n?2026-05-01\n?</parameter>"
    r"\s*<parameter=nights>(?P<nights>[^<]*)</parameter>"
    r"\s*<parameter=paid>\s*(?:[tT][rR][uU][eE])\s*</parameter>"
    r"\s*<parameter=guests>\n?(?P<guests>[^<]*?)\n?</parameter>"
    r"\s*</function>\s*</tool_call>\s*",
    re.DOTALL,
)


@settings(max_examples=sized(60, 250), deadline=None)
@given(edit=EDITS)
def test_an_xml_call_with_one_character_changed_passes_only_where_it_means_the_same(
    edit: tuple[str, float, str],
) -> None:
    changed = edited(CALL, edit)
    right = _RIGHT_CALL.fullmatch(changed)
    passes = not run_checks(changed, ["tool_call"], {"name": "book", "arguments": ARGUMENTS}, DATA["tools"])
    if right is None or right["before"].isascii():  # a letter of another script before the call is wrong
        same = right is not None and means(right["nights"].strip(), 3) and means(right["guests"], ARGUMENTS["guests"])
        assert passes == same, changed


OTHER_SHOP = {"A": "B", "B": "A"}


@pytest.mark.long
@pytest.mark.parametrize("said", DATA["conclusions"])
@pytest.mark.parametrize("sums", DATA["sums"], ids=range(len(DATA["sums"])))
def test_a_right_comparison_is_right_and_with_a_price_shop_or_unit_changed_it_is_not(sums: str, said: str) -> None:
    offers = {"offers": DATA["offers"]}

    def right(text: str) -> bool:
        return not run_checks(text, ["discount"], offers)

    assert right(sums + said)
    assert right(said + "\n\n" + sums), "a conclusion may stand first"
    last = sums.rindex("800")  # of the final price of shop B
    for digit in "12345679":
        assert not right(sums[:last] + digit + sums[last + 1 :] + "Levnější je obchod B."), digit
    swapped = re.sub(r"(?<!\w)[AB](?!\w)", lambda shop: OTHER_SHOP[shop.group()], said)
    codes = {one.code for one in run_checks(sums + swapped, ["discount"], offers)}
    assert codes - {"wrong_amount"} == {"wrong_conclusion"}
    assert ("wrong_amount" in codes) == ("(2 800 Kč)" in said), "only a price that is stated again is wrong too"
    exchanged = re.sub(r"(?<!\w)[AB](?!\w)", lambda shop: OTHER_SHOP[shop.group()], sums)
    assert right(exchanged + said) == ("(2 800 Kč)" in said), "the last statement of a price counts"
    assert not right(sums)
    if "Kč" in sums:
        assert not right((sums + said).replace("Kč", "€"))
