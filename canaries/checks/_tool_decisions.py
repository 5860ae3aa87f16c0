"""Which characters of a right answer with tool calls, or of one rightly without, were decisions."""

import re
from collections.abc import Iterator
from typing import Any

from q36eval.canaries.checks._base import Decision, Tools
from q36eval.canaries.checks._json_decisions import json_decisions
from q36eval.canaries.checks._json_tokens import tokens
from q36eval.canaries.checks._tool_parser import OPEN, Call, parse_reply
from q36eval.canaries.checks._tool_types import property_schema, schemas_by_name, typed_arguments

_FIRST_WORD = re.compile(r"\S+")


def no_call_decisions(text: str) -> list[Decision]:
    """The answer's first word stands where a call could have begun."""
    word = _FIRST_WORD.search(text)
    return [] if word is None else [Decision("call", word.start(), word.end(), (OPEN,))]


def call_decisions(text: str, tools: Tools) -> list[Decision]:
    """Of every call: that it is made, which tool, its arguments, and where the arguments end."""
    offered = schemas_by_name(tools)
    found: list[Decision] = []
    for call in parse_reply(text).calls:
        found.append(Decision("call", call.start, call.start + len(OPEN)))
        others = tuple(name for name in offered if name != call.name)
        schema = offered.get(call.name, {})
        inner = _in_xml(text, call, others, schema) if call.form == "xml" else _in_json(text, call, others, schema)
        found.extend(inner)
    return found


def _in_xml(text: str, call: Call, others: tuple[str, ...], schema: dict[str, Any]) -> Iterator[Decision]:
    yield Decision("tool", *call.spans.name, others)
    values = typed_arguments(call, schema)
    for key, (start, end) in call.spans.arguments.items():
        described = property_schema(key, schema)
        if isinstance(values[key], (dict, list)):
            yield from json_decisions(text, start + _indent(text[start:end]), described, "argument")
        elif end > start:
            yield Decision("argument", start, end, _wrong_text(text[start:end], values[key], described))
    # another argument could have followed
    yield Decision("close", *call.spans.close, ("<parameter=",))


def _indent(raw: str) -> int:
    return len(raw) - len(raw.lstrip())


def _wrong_text(raw: str, value: Any, schema: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(value, bool):
        other = str(not value)
        return (other if raw[0].isupper() else other.lower(),)
    return tuple(other for other in schema.get("enum", ()) if isinstance(other, str) and other != value)


def _in_json(text: str, call: Call, others: tuple[str, ...], schema: dict[str, Any]) -> Iterator[Decision]:
    start = call.spans.name[0]
    whole = {"properties": {"arguments": schema}}
    name = next(token for token in tokens(text, start) if token.kind == "value" and token.path == ['"name"'])
    yield Decision("tool", name.start + 1, name.end - 1, others)
    yield from (decision for decision in json_decisions(text, start, whole, "argument") if decision.start != name.start)
