"""What the raw text of an XML argument stands for, by the tool's own schema."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from q36eval.canaries.checks._base import Tools, shown
from q36eval.canaries.checks._json import StrictJSONError, plain, strict_json
from q36eval.canaries.checks._schema import check_schema
from q36eval.canaries.checks._tool_parser import Call

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
    found = parameters.get("properties", {}).get(key, parameters.get("additionalProperties"))
    return found if isinstance(found, dict) else {}


def typed_arguments(call: Call, parameters: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """The call's arguments as JSON values; numbers that are no integers as `Decimal` where they are to be `exact`."""
    if call.form == "json":
        return call.arguments if exact else plain(call.arguments)
    definitions = parameters.get("$defs", {})
    found = {key: typed(raw, property_schema(key, parameters), definitions) for key, raw in call.arguments.items()}
    return found if exact else plain(found)


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
