"""Our own reading of tool calls from raw text: Qwen's XML and the older Hermes JSON.

Server-side parsers have bugs of their own, so a model is judged on what it wrote.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from canaries.checks._json import StrictJSONError, strict_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\A\s*<function=([^>\n]*)>\n?(.*)</function>\s*\Z", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,30})", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,30})(\.\d{1,30})?([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class Call:
    """One call as written. XML arguments are raw text until the tool's schema types them; JSON ones are typed."""

    name: str
    arguments: dict[str, Any]
    form: Literal["xml", "json"]


@dataclass(frozen=True)
class Reply:
    """An answer taken apart: prose before the first call and after the last, the calls, what was malformed."""

    before: str
    calls: tuple[Call, ...]
    after: str
    problems: tuple[tuple[str, str, str], ...]
    """(code, place, message) of every malformed call."""

    @property
    def tries_a_call(self) -> bool:
        """Whether the answer contains a call or the beginnings of one."""
        return bool(self.calls or self.problems)


class _CallSyntaxError(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def parse_reply(text: str) -> Reply:
    """Take an answer apart. Never raises."""
    start = text.find(OPEN)
    if start < 0:
        stray = next((mark for mark in ("<function=", "<parameter=", CLOSE) if mark in text), None)
        problems = () if stray is None else (("stray_markup", "answer", f"{stray} outside {OPEN}"),)
        return Reply(text, (), "", problems)
    before = text[:start]
    calls: list[Call] = []
    found: list[tuple[str, str, str]] = []
    position = start
    while (at := text.find(OPEN, position)) >= 0:
        between = text[position:at]
        if between.strip():
            found.append(("text_between_calls", f"before call {len(calls) + 1}", "text between two calls"))
        end = text.find(CLOSE, at)
        if end < 0:
            found.append(("unclosed_call", f"call {len(calls) + 1}", f"{CLOSE} is missing"))
            return Reply(before, tuple(calls), "", tuple(found))
        try:
            calls.append(_call(text[at + len(OPEN) : end]))
        except _CallSyntaxError as error:
            found.append((error.code, f"call {len(calls) + 1}", str(error)))
        position = end + len(CLOSE)
    return Reply(before, tuple(calls), text[position:], tuple(found))


def _call(body: str) -> Call:
    return _json_call(body) if body.lstrip().startswith("{") else _xml_call(body)


def _json_call(body: str) -> Call:
    try:
        value = strict_json(body.strip())
    except StrictJSONError as error:
        raise _CallSyntaxError("malformed_call", str(error)) from error
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments, "json")
    raise _CallSyntaxError("malformed_call", 'a JSON call needs "name" and an object "arguments"')


def _xml_call(body: str) -> Call:
    function = _FUNCTION.match(body)
    if function is None:
        raise _CallSyntaxError("malformed_call", "no <function=NAME> … </function> inside the call")
    name, inner = function.groups()
    arguments: dict[str, Any] = {}
    position = 0
    while parameter := _PARAMETER.match(inner, position):
        key, value = parameter.groups()
        if key in arguments:
            raise _CallSyntaxError("repeated_argument", "an argument is given twice")
        arguments[key] = value
        position = parameter.end()
    if inner[position:].strip():
        raise _CallSyntaxError("malformed_call", "text between the parameters, or one that is not closed")
    return Call(name, arguments, "xml")


def typed(raw: str, schema: dict[str, Any]) -> Any:
    """The value that `raw` stands for under a parameter's schema; text that does not fit the type stays text.

    Booleans are read in any case, as the server-side parsers do.
    """
    kinds = schema.get("type", "string")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        value = _read(raw, str(kind))
        if value is not _UNREADABLE:
            return value
    return raw


_UNREADABLE = object()


def _read(raw: str, kind: str) -> Any:
    if kind == "string":
        return raw
    if kind == "integer":
        return int(raw) if _INTEGER.fullmatch(raw) else _UNREADABLE
    if kind == "number":
        if _INTEGER.fullmatch(raw):
            return int(raw)
        return float(raw) if _NUMBER.fullmatch(raw) else _UNREADABLE
    if kind == "boolean":
        return {"true": True, "false": False}.get(raw.lower(), _UNREADABLE)
    if kind == "null":
        return None if raw == "null" else _UNREADABLE
    try:
        value = strict_json(raw)
    except StrictJSONError:
        return _UNREADABLE
    return value if isinstance(value, {"array": list, "object": dict}.get(kind, object)) else _UNREADABLE
