"""Our own reading of tool calls from raw text: Qwen's XML and the older Hermes JSON.

Server-side parsers have bugs of their own, so a model is judged on what it wrote.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from q36eval.canaries.checks._base import place_of, shown
from q36eval.canaries.checks._json import StrictJSONError, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALLS = 200
"""Calls that are read of one answer, well formed or not; no canary wants near as many."""

_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>(?:\r?\n)?")
_PARAMETER_END = "</parameter>"
_FUNCTION_END = re.compile(r"\s*(</function>)\s*</tool_call>")
_JSON_END = re.compile(r"\s*</tool_call>")
_NEXT_PART = re.compile(r"\n[ \t]{0,40}<(?:parameter|function)=|<tool_call>")
_BRACE = re.compile(r"\s*\{")

Span = tuple[int, int]


@dataclass(frozen=True)
class Spans:
    """Where the parts of a call stand in the answer: characters [start, end)."""

    name: Span
    arguments: dict[str, Span]
    close: Span
    """What ends the arguments: `</function>`, or the brace that closes the JSON call."""

    end: int
    """The character after the whole call."""


@dataclass(frozen=True)
class Call:
    """One call as written. XML arguments are raw text until the tool's schema types them; JSON ones are typed.

    `number` counts from 1 over all calls of the answer, malformed ones included; `start` is where `<tool_call>` stands.
    """

    name: str
    arguments: dict[str, Any]
    form: Literal["xml", "json"]
    number: int
    start: int
    spans: Spans = field(compare=False, repr=False)


@dataclass(frozen=True)
class Reply:
    """An answer taken apart: prose before the first call and after the last, the calls, what was malformed."""

    before: str
    calls: tuple[Call, ...]
    after: str
    problems: tuple[tuple[str, str, str], ...]
    """(code, place, message) of every malformed call."""

    attempts: int = 0
    """Calls that were begun, well formed or not."""

    @property
    def tries_a_call(self) -> bool:
        """Whether the answer contains a call or the beginnings of one."""
        return bool(self.calls or self.problems)


class _CallSyntaxError(ValueError):
    def __init__(self, code: str, at: int, message: str) -> None:
        super().__init__(message)
        self.code, self.at = code, at


def parse_reply(text: str) -> Reply:
    """Take an answer apart. Never raises."""
    start = text.find(OPEN)
    if start < 0:
        return Reply(text, (), "", _stray_markup(text))
    calls: list[Call] = []
    problems: list[tuple[str, str, str]] = []
    position, number = start, 0
    while (at := text.find(OPEN, position)) >= 0:
        number += 1
        if number > MAX_CALLS:
            problems.append(("too_many_calls", place_of(text, at), f"more than {MAX_CALLS} calls"))
            position = len(text)
            break
        if text[position:at].strip():
            message = f"{shown(text[position:at].strip())} between two calls"
            problems.append(("text_between_calls", f"before call {number}, {place_of(text, position)}", message))
        try:
            call = _call(text, at, number)
            calls.append(call)
            position = call.spans.end
        except _CallSyntaxError as error:
            code, message, position = _after_bad_call(text, at, error)
            problems.append((code, f"call {number}, {place_of(text, error.at)}", message))
    return Reply(text[:start], tuple(calls), text[position:], tuple(problems), number)


def _after_bad_call(text: str, at: int, error: _CallSyntaxError) -> tuple[str, str, int]:
    """Code, message, and where to read on: after the call's end, or at the next call where it has none."""
    following = text.find(OPEN, at + len(OPEN))
    close = text.find(CLOSE, at, following if following >= 0 else len(text))
    if close >= 0:
        return error.code, str(error), close + len(CLOSE)
    return "unclosed_call", f"{CLOSE} is missing", following if following >= 0 else len(text)


def _stray_markup(text: str) -> tuple[tuple[str, str, str], ...]:
    marks = [(text.find(mark), mark) for mark in ("<function=", "<parameter=", CLOSE)]
    at, mark = min(((at, mark) for at, mark in marks if at >= 0), default=(-1, ""))
    return () if at < 0 else (("stray_markup", place_of(text, at), f"{mark} outside {OPEN}"),)


def _call(text: str, start: int, number: int) -> Call:
    body = start + len(OPEN)
    brace = _BRACE.match(text, body)
    return _xml_call(text, start, body, number) if brace is None else _json_call(text, start, brace.end() - 1, number)


def _json_call(text: str, start: int, brace: int, number: int) -> Call:
    try:
        value, end = read_json(text, brace, exact=True)
    except StrictJSONError as error:
        raise _CallSyntaxError("malformed_call", error.at, str(error)) from error
    close = _JSON_END.match(text, end)
    if close is None:
        raise _CallSyntaxError("malformed_call", end, f"text between the JSON and {CLOSE}")
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            spans = Spans((brace, end), {}, (end - 1, end), close.end())
            return Call(name, arguments, "json", number, start, spans)
    raise _CallSyntaxError("malformed_call", brace, 'a JSON call needs "name" and an object "arguments"')


def _xml_call(text: str, start: int, body: int, number: int) -> Call:
    function = _FUNCTION.match(text, body)
    if function is None:
        raise _CallSyntaxError("malformed_call", body, "no <function=NAME> after <tool_call>")
    arguments: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        key, begin = parameter.group(1), parameter.end()
        if key in arguments:
            raise _CallSyntaxError("repeated_argument", parameter.start(1), f"{shown(key)} is given twice")
        end = text.find(_PARAMETER_END, begin)
        if end < 0 or _NEXT_PART.search(text, begin - 1, end):
            raise _CallSyntaxError("unclosed_argument", parameter.start(1), f"{shown(key)} lacks its {_PARAMETER_END}")
        position = end + len(_PARAMETER_END)
        if text.endswith("\n", begin, end):
            end -= 2 if text.endswith("\r\n", begin, end) else 1
        arguments[key], spans[key] = text[begin:end], (begin, end)
    close = _FUNCTION_END.match(text, position)
    if close is None:
        raise _CallSyntaxError("malformed_call", position, f"no </function> and {CLOSE} after the parameters")
    parts = Spans(function.span(1), spans, close.span(1), close.end())
    return Call(function.group(1), arguments, "xml", number, start, parts)
