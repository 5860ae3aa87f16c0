"""Tool calls read from raw text (Qwen's XML and the older Hermes JSON), their arguments typed by the tools' schemas.

Server-side parsers have bugs of their own, so a model is judged on what it wrote. Nothing here knows the right calls:
`calls_fit` says what holds of any call, `same_calls` whether a server's parser read the same ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from q36eval.canaries.checks.base import Tools, place_of, shown
from q36eval.canaries.checks.json_schema import check_schema, schema_failures
from q36eval.canaries.checks.json_values import StrictJSONError, plain, read_json, same_json, strict_json

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


_NUMBER = re.compile(r"-?(0|[1-9]\d{0,30})(\.\d{1,30})?([eE][+-]?\d{1,3})?", re.ASCII)
_UNREADABLE = object()
_MAX_REFERENCES = 16


def check_tools(tools: Tools) -> None:
    """Refuse tools that no call could be judged by.

    Raises:
        ValueError: a tool without a name, a name used twice, or parameters that are no JSON Schema of an object.
    """
    seen = set()
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"tool {number} has no name")
        if name in seen:
            raise ValueError(f"two tools are called {shown(name)}")
        seen.add(name)
        parameters = function.get("parameters", {})
        try:
            check_schema(parameters)
        except ValueError as error:
            raise ValueError(f"the parameters of tool {shown(name)}: {error}") from error
        if parameters.get("type", "object") != "object":
            raise ValueError(f"the parameters of tool {shown(name)} must be a schema of type object")


def schemas_by_name(tools: Tools) -> dict[str, dict[str, Any]]:
    """The parameters' schema of every offered tool."""
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters", {}) for function in functions}


def property_schema(key: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """What a tool's schema says of one argument; empty where it says nothing."""
    described = parameters.get("properties", {}).get(key, parameters.get("additionalProperties"))
    return described if isinstance(described, dict) else {}


def typed_arguments(call: Call, parameters: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """The call's arguments as JSON values; numbers that are no integers as `Decimal` where they are to be `exact`."""
    if call.form == "json":
        return call.arguments if exact else plain(call.arguments)
    definitions = parameters.get("$defs", {})
    values = {key: typed(raw, property_schema(key, parameters), definitions) for key, raw in call.arguments.items()}
    return values if exact else plain(values)


def typed(raw: str, schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> Any:
    """The value that `raw` stands for under a parameter's schema; text that does not fit the type stays text.

    Of several types the null comes first, text last, the others as they are written. White space around all but text
    does not count. Booleans are read in any case, as the server-side parsers do, and the null is `None` too: so the
    template writes them into older turns. An integer is one by its value: 3.0 is 3.
    """
    kinds = list(dict.fromkeys(_kinds(schema, definitions or {}, _MAX_REFERENCES)))
    kinds.sort(key=lambda kind: {"null": 0, "string": 2}.get(kind, 1))
    for kind in kinds:
        value = _read(raw, kind)
        if value is not _UNREADABLE:
            return value
    return raw


def _kinds(schema: Any, definitions: dict[str, Any], depth: int) -> Iterator[str]:
    """The types that a schema allows."""
    if not isinstance(schema, dict) or depth == 0:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from _kinds(definitions.get(reference.removeprefix("#/$defs/")), definitions, depth - 1)
    kinds = schema.get("type", [])
    yield from [kinds] if isinstance(kinds, str) else kinds
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, ()):
            yield from _kinds(part, definitions, depth - 1)
    if "type" not in schema:
        listed = [schema["const"]] if "const" in schema else schema.get("enum", ())
        yield from (_KIND_OF.get(type(value), "null") for value in listed)


_KIND_OF = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def _read(raw: str, kind: str) -> Any:
    if kind == "string":
        return raw
    said = raw.strip()
    if kind in ("integer", "number"):
        number = Decimal(said) if _NUMBER.fullmatch(said) else None
        if number is None:
            return _UNREADABLE
        whole = number == number.to_integral_value()
        return int(number) if whole else number if kind == "number" else _UNREADABLE
    if kind == "boolean":
        return {"true": True, "false": False}.get(said.lower(), _UNREADABLE)
    if kind == "null":
        return None if said in ("null", "None") else _UNREADABLE
    try:
        value = strict_json(raw, exact=True)
    except StrictJSONError:
        return _UNREADABLE
    return value if isinstance(value, {"array": list, "object": dict}.get(kind, object)) else _UNREADABLE


def calls_fit(text: str, tools: Tools) -> bool | None:
    """Whether every call is well formed, of an offered tool, and within that tool's schema; None without a call. Pure.

    Raises:
        NotJudgedError: a pattern of a tool's schema ran out of time.
    """
    reply, offered = parse_reply(text), schemas_by_name(tools)
    if not reply.tries_a_call:
        return None
    well_formed = not any(code != "text_between_calls" for code, _, _ in reply.problems)
    return well_formed and all(
        call.name in offered and not schema_failures("", typed_arguments(call, offered[call.name]), offered[call.name])
        for call in reply.calls
    )


def same_calls(text: str, tools: Tools, served: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a server's parser made the calls of the raw text.

    Args:
        text: the raw text.
        tools: the offered tools.
        served: the calls as the server parsed them, as `{"name", "arguments"}` or OpenAI's `{"function": {"name",
            "arguments"}}`, the arguments as an object or as its JSON text.
    """
    offered = schemas_by_name(tools)
    ours = [[call.name, typed_arguments(call, offered.get(call.name, {}))] for call in parse_reply(text).calls]
    return same_json(ours, [_served(call) for call in served])


def _served(call: Mapping[str, Any]) -> list[Any]:
    """Name and arguments; arguments that are no JSON stay text, which equals no right ones."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(StrictJSONError):
            arguments = strict_json(arguments)
    return [function.get("name"), arguments]
