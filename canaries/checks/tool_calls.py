"""Tool calls: whether one is made, which tool, and its arguments typed by the tool's own schema."""

from typing import Any

from canaries.checks._base import Check, Expected, Failure, Tools, shown
from canaries.checks._json import differences, schema_failures
from canaries.checks._tool_parser import Call, parse_reply, typed


class ExpectedCall(Expected):
    """`name` and `arguments` of the one right call; arguments that were not asked for are left out."""

    name: str
    arguments: dict[str, Any]


class ExpectedNoCall(Expected):
    """Nothing is needed to see that no call was made."""


def _parameters(tools: Tools) -> dict[str, dict[str, Any]]:
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters", {}) for function in functions}


def _tool_call(text: str, expected: ExpectedCall, tools: Tools) -> list[Failure]:
    reply = parse_reply(text)
    failures = [Failure("tool_call", code, place, message) for code, place, message in reply.problems]
    if not reply.calls:
        return failures or [Failure("tool_call", "no_call", "answer", f"no call; says {shown(text.strip())}")]
    if len(reply.calls) > 1:
        failures.append(Failure("tool_call", "several_calls", "answer", f"{len(reply.calls)} calls instead of one"))
    if reply.after.strip():
        failures.append(Failure("tool_call", "text_after_call", "end", f"goes on with {shown(reply.after.strip())}"))
    return failures + _call_failures(reply.calls[0], expected, _parameters(tools))


def _call_failures(call: Call, expected: ExpectedCall, offered: dict[str, dict[str, Any]]) -> list[Failure]:
    if call.name != expected.name:
        code = "wrong_tool" if call.name in offered else "unknown_tool"
        return [Failure("tool_call", code, "name", f"calls {shown(call.name)}, not {shown(expected.name)}")]
    schema = offered.get(call.name, {})
    properties = schema.get("properties", {})
    arguments = call.arguments
    if call.form == "xml":
        arguments = {key: typed(raw, properties.get(key, {})) for key, raw in arguments.items()}
    against_schema = schema_failures("tool_call", arguments, schema)
    return against_schema + list(differences("tool_call", arguments, expected.arguments, "arguments"))


def _no_tool_call(text: str, expected: ExpectedNoCall, tools: Tools) -> list[Failure]:
    reply = parse_reply(text)
    if not reply.tries_a_call:
        return []
    names = ", ".join(shown(call.name) for call in reply.calls) or "a malformed call"
    return [Failure("no_tool_call", "unwanted_call", "answer", f"calls {names} though nothing fits")]


tool_call = Check("tool_call", ExpectedCall, _tool_call)
no_tool_call = Check("no_tool_call", ExpectedNoCall, _no_tool_call)
