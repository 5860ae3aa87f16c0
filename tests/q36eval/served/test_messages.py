"""A chat answer is held to what the model wrote for it; each kind of fault has its name, and a right answer none."""

import json
from typing import Any

import pytest

from q36eval.canaries.cases import Case
from q36eval.canaries.specification import GenerationSettings
from q36eval.engines.openai.chat_answers import Message, message_of, streamed_message
from q36eval.engines.openai.client import MalformedError
from q36eval.served.messages import call_class, parser_faults, raw_calls, served_calls
from tests.canaries.test_checks import tool

ASKED = {"day": {"type": "string"}, "people": {"type": "integer"}}
TOOLS = [tool("book", "day", ASKED, additionalProperties=False)]
PARAMETERS = "<parameter=day>\npondělí\n</parameter>\n<parameter=people>\n3\n</parameter>"
CALL = f"<tool_call>\n<function=book>\n{PARAMETERS}\n</function>\n</tool_call>"
GENERATION = GenerationSettings(decoding="greedy", max_new_tokens=64)
RAW = f"Zamluvím to.\n</think>\n\n{CALL}"
ARGUMENTS = '{"day": "pondělí", "people": 3}'
UNFINISHED = ("Přemýšlím a nekončím", f"Dobře.\n</think>\n\n{CALL[:-30]}")
"""What no parser can read rightly: the model is at fault."""


def message(
    content: str | None = None,
    reasoning: str | None = "Zamluvím to.",
    arguments: str = ARGUMENTS,
    finish: str = "tool_calls",
) -> Message:
    return Message(content, reasoning, (("book", arguments),), finish)


@pytest.mark.parametrize(
    ("raw", "served", "thinking", "kinds"),
    [
        (RAW, message(), True, set()),
        (RAW, message(arguments=ARGUMENTS[:-4]), True, {"arguments"}),
        (RAW, message(arguments='{"day": "pondělí", "people": "3"}'), True, {"arguments"}),
        (RAW, message(finish="stop"), True, {"finish"}),
        (RAW, Message(None, "Zamluvím to.", (), "stop"), True, {"calls"}),
        (RAW, Message(None, RAW, (), "stop"), True, {"calls", "thought"}),
        (RAW, message(content="</think>"), True, {"tags", "thought"}),
        ("Hotovo.", Message(None, None, (), "stop"), False, {"content"}),
        ("Hotovo.", Message("Hotovo.<|im_end|>", None, (), "stop"), False, {"tags"}),
        ("Hotovo.", Message("Hotovo.", None, (("book", "{}"),), "tool_calls"), False, {"calls"}),
        *((raw, Message(None, raw, (), "length"), True, set()) for raw in UNFINISHED),
        (
            "Dobře.\n</think>\n\nHotovo.",
            Message(None, "Dobře.\n</think>\n\nHotovo.", (), "stop"),
            True,
            {"thought", "content"},
        ),
    ],
)
def test_each_fault_has_its_kind(raw: str, served: Message, thinking: bool, kinds: set[str]) -> None:
    for marks in ((), ("</think>", "<tool_call>", "</tool_call>")):  # special tokens, and not left out
        assert set(parser_faults(raw, served, TOOLS, thinking=thinking, special=marks)) == kinds


IMAGE = "<|image_pad|>"


@pytest.mark.parametrize(
    ("raw", "content", "kinds"),
    [
        (f"Hotovo{IMAGE} a dál.", "Hotovo a dál.", set()),  # a server leaves special tokens out,
        (f"Hotovo{IMAGE} a dál.", f"Hotovo{IMAGE} a dál.", set()),  # or is asked for them
        (f"Hotovo{IMAGE} a dál.", "Hotovo dál.", {"content"}),
        ("Hotovo \ufffd\ufffd", "Hotovo", set()),  # a character of which the last tokens hold the beginning
        ("Hotovo \ufffd", "Hotov", {"content"}),
        ("Hotovo \ufffd a dál", "Hotovo  a dál", {"content"}),
        ("Hotovo.", "Hotovo.\ufffd", {"content"}),  # nobody wrote that
    ],
)
def test_what_a_server_never_sends_is_no_fault_of_its_parser(raw: str, content: str, kinds: set[str]) -> None:
    served = Message(content, None, (), "length")
    assert set(parser_faults(raw, served, TOOLS, thinking=False, special=[IMAGE])) == kinds


def case(name: str | None = "book", arguments: dict[str, Any] | None = None) -> Case:
    expected = {"name": name, "arguments": arguments if arguments is not None else {"day": "pondělí", "people": 3}}
    return Case("c/1", "c", "tool_call", (), tuple(TOOLS), expected, "", GENERATION, (), False)


@pytest.mark.parametrize(
    ("wanted", "calls", "expected"),
    [
        (case(), [("book", '{"day": "pondělí", "people": 3}')], None),
        (case(), [("book", '{"day": "pondělí"')], "InvalidJson"),
        (case(), [("cook", "{}")], "UnknownName"),
        (case(), [("book", '{"people": 3}')], "SchemaMismatch"),
        (case(), [("book", '{"day": "úterý", "people": 3}')], "WrongArguments"),
        (case(), [], "Missing"),
        (case(), [("book", ARGUMENTS), ("book", ARGUMENTS)], "Spurious"),
        (case(None), [("book", ARGUMENTS)], "Spurious"),
        (case(None), [], None),
    ],
)
def test_calls_are_classified(wanted: Case, calls: list[tuple[str, str]], expected: str | None) -> None:
    served = Message(None, None, tuple(calls), "tool_calls")
    assert call_class(wanted, served_calls(served)) == expected
    assert call_class(case(), raw_calls(RAW, TOOLS, thinking=True)) is None
    assert call_class(case(), raw_calls(RAW[:-20], TOOLS, thinking=True)) == "InvalidJson"


def test_a_stream_is_put_together_as_a_client_does() -> None:
    whole = {"role": "assistant", "content": None, "reasoning": "Zamluvím to.",
             "tool_calls": [{"function": {"name": "book", "arguments": ARGUMENTS}}]}  # fmt: skip
    deltas = [{"reasoning": "Zamluvím"}, {"reasoning": " to."}]
    deltas += [{"tool_calls": [{"index": 0, "function": {"name": "book", "arguments": ""}}]}]
    deltas += [
        {"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in (ARGUMENTS[:5], ARGUMENTS[5:])
    ]
    events = [{"model": "m", "choices": [{"delta": delta}]} for delta in (*deltas, {})]
    events[-1]["choices"][0]["finish_reason"] = "tool_calls"  # type: ignore[index]
    one = message_of({"model": "m", "choices": [{"message": whole, "finish_reason": "tool_calls"}]})
    streamed = streamed_message(events)
    assert (streamed.reasoning, streamed.calls, streamed.finish) == (one.reasoning, one.calls, one.finish)
    assert (streamed.content or "", one.content or "") == ("", "")
    assert json.loads(one.calls[0][1] or "") == json.loads(ARGUMENTS)
    for none in ([], [{"model": "m", "choices": []}]):
        with pytest.raises(MalformedError):
            streamed_message(none)
