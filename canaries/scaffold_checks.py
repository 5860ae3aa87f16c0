"""What judges a right answer, by its form alone, and what those checks expect of other answers."""

import json
import re
from collections.abc import Callable
from typing import Any

from q36eval.canaries.checks import parse_reply
from q36eval.canaries.checks._json import StrictJSONError, strict_json
from q36eval.canaries.checks._tool_types import schemas_by_name, typed_arguments
from q36eval.canaries.transcript import Transcript
from q36eval.errors import UsageError

MAX_LIST_ITEM = 40
"""Characters. Longer pieces between commas are prose, which is no list."""

_FENCE = re.compile(r"\A```[\w+-]*\n(.*?)\n?```\Z", re.DOTALL)

Expectation = Callable[[str, Transcript], dict[str, Any]]


def guess_checks(right: str, transcript: Transcript) -> list[str]:
    """What judges an answer of this form: calls, JSON, code, lines, a list, else the exact text."""
    said = right.strip()
    calls = parse_reply(right).calls
    if calls:
        return ["tool_call" if len(calls) == 1 else "tool_calls"]
    if transcript.tools:
        return ["no_tool_call"]
    if isinstance(_json_or_none(said), dict | list):
        return ["json"]
    fenced = _FENCE.match(said)
    if fenced is not None and not isinstance(_json_or_none(fenced.group(1)), dict | list):
        return ["exact_code"]
    if _embedded_json(said) is not None:
        return ["json_in_prose"]
    if len(_lines(said)) > 1:
        return ["exact_lines"]
    items = _items(said)
    is_list = len(items) > 1 and all(0 < len(item) <= MAX_LIST_ITEM for item in items) and said[-1] not in ".!?"
    return ["ordered_list" if is_list else "exact_text"]


def inferred_schema(value: Any) -> dict[str, Any]:
    """A strict JSON Schema that values of this shape fulfil: all keys required and no others, types exact."""
    if isinstance(value, dict):
        properties = {key: inferred_schema(inner) for key, inner in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(value),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        kinds: list[dict[str, Any]] = []
        for inner in map(inferred_schema, value):
            kinds += [inner] if inner not in kinds else []
        if not kinds:
            return {"type": "array"}
        return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names.get(type(value), "null")}


def _calls(right: str, transcript: Transcript) -> list[dict[str, Any]]:
    offered = schemas_by_name(transcript.tools)
    reply = parse_reply(right)
    if not reply.calls:
        raise UsageError("The right answer holds no tool call that can be read, which its check asks for.")
    for call in reply.calls:
        if call.name not in offered:
            raise UsageError(
                f"The right answer calls {call.name!r}, which the transcript does not offer; it offers "
                f"{', '.join(offered) or 'no tools'}."
            )
    return [{"name": call.name, "arguments": typed_arguments(call, offered[call.name])} for call in reply.calls]


def _one_call(right: str, transcript: Transcript) -> dict[str, Any]:
    calls = _calls(right, transcript)
    if len(calls) > 1:
        raise UsageError(f"The right answer makes {len(calls)} calls; judge it with --check tool_calls.")
    return calls[0] | _format(right)


def _all_calls(right: str, transcript: Transcript) -> dict[str, Any]:
    return {"calls": _calls(right, transcript), "any_order": False} | _format(right)


def _format(right: str) -> dict[str, Any]:
    """That the calls are JSON, if the right answer's are; otherwise nothing."""
    written = {call.form for call in parse_reply(right).calls}
    return {"tool_format": "hermes"} if written == {"json"} else {}


def _object(right: str, transcript: Transcript) -> dict[str, Any]:
    value = _json_or_none(right.strip())
    value = _embedded_json(right) if value is None else value
    if not isinstance(value, dict | list):
        raise UsageError("The right answer holds no JSON object that can be read, which its check asks for.")
    return {"object": value, "schema": transcript.schema or inferred_schema(value)}


def _code(right: str, transcript: Transcript) -> dict[str, Any]:
    fenced = _FENCE.match(right.strip())
    return {"code": right.strip("\n") if fenced is None else fenced.group(1), "fence": fenced is not None}


EXPECTATIONS: dict[str, Expectation] = {
    "tool_call": _one_call,
    "tool_calls": _all_calls,
    "json": _object,
    "json_in_prose": _object,
    "exact_code": _code,
    "exact_text": lambda right, _: {"text": right.strip()},
    "exact_lines": lambda right, _: {"lines": _lines(right)},
    "enum_member": lambda right, _: {"value": right.strip()},
    "ordered_list": lambda right, _: {"items": _items(right.strip())},
}
"""What the right answer alone tells a check. Other checks need what a person says."""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split(r"[,\n]", text)]


def _json_or_none(text: str) -> Any:
    try:
        return strict_json(text)
    except StrictJSONError:
        return None


def _embedded_json(text: str) -> Any:
    """The one JSON object or array that stands in prose or in a fence; None where there is none, or another follows."""
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        return None
    try:
        value, length = json.JSONDecoder().raw_decode(text[min(starts) :])
    except (ValueError, RecursionError):
        return None
    rest = text[min(starts) + length :]
    return value if isinstance(value, dict | list) and not {"{", "["} & set(rest) else None
