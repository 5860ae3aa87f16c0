"""What a canary's conversation and its tools must look like, whatever chat template renders them."""

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

ROLES = ("system", "user", "assistant", "tool")


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Every message has a known role and text; earlier tool calls carry their arguments as a mapping.

    Qwen's chat templates iterate over a call's arguments, so arguments as a JSON string would not render.

    Raises:
        ValueError: what is wrong, by the message's number.
    """
    for number, message in enumerate(messages, 1):
        role, calls = message.get("role"), message.get("tool_calls")
        if role not in ROLES:
            raise ValueError(f"message {number} has the role {role!r}; there are {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str) and not (role == "assistant" and calls):
            raise ValueError(f"message {number} has no text under content")
        for call in calls or ():
            function = call.get("function", call) if isinstance(call, dict) else {}
            if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), dict):
                raise ValueError(f"message {number} holds a tool call without a name or without a mapping of arguments")


def check_tools(tools: list[dict[str, Any]]) -> None:
    """Every tool has a name of its own, and parameters that are a JSON Schema.

    Raises:
        ValueError: what is wrong, by the tool's number or name.
    """
    names = set()
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"tool {number} has no name")
        if name in names:
            raise ValueError(f"two tools are called {name!r}")
        names.add(name)
        check_schema(function.get("parameters", {}), f"the parameters of the tool {name!r}")


def check_schema(schema: Any, what: str) -> None:
    """`schema` is a JSON Schema (2020-12) that refers to nothing outside itself.

    Raises:
        ValueError: it is not, with the place.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        message = " ".join(error.message.split())
        raise ValueError(f"{what}: no JSON Schema, at {error.json_path}: {message[:200]}") from error
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise ValueError(f"{what}: $ref {reference!r} leads nowhere in this schema") from error


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
