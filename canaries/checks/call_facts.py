"""What can be said of an answer's tool calls without knowing the right ones, and who is to blame for a fault."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from q36eval.canaries.checks._base import Failure, Tools
from q36eval.canaries.checks._json import StrictJSONError, same_json, strict_json
from q36eval.canaries.checks._schema import schema_failures
from q36eval.canaries.checks._tool_parser import parse_reply
from q36eval.canaries.checks._tool_types import schemas_by_name, typed_arguments

Fault = Literal["model", "parser", "server"]


@dataclass(frozen=True)
class CallFacts:
    """`called`: whether a call was made, well formed or not. `schema_ok`: whether every call was well formed, of an
    offered tool, and within that tool's schema; None where no call was made.
    """

    called: bool
    schema_ok: bool | None


def call_facts(text: str, tools: Tools) -> CallFacts:
    """The facts that vendor verifiers count: trigger agreement and schema accuracy. Pure.

    Raises:
        NotJudgedError: a pattern of a tool's schema ran out of time.
    """
    reply, offered = parse_reply(text), schemas_by_name(tools)
    if not reply.tries_a_call:
        return CallFacts(called=False, schema_ok=None)
    well_formed = not any(code != "text_between_calls" for code, _, _ in reply.problems)
    ok = well_formed and all(
        call.name in offered and not schema_failures("", typed_arguments(call, offered[call.name]), offered[call.name])
        for call in reply.calls
    )
    return CallFacts(called=True, schema_ok=ok)


def fault_of(
    failures: Sequence[Failure],
    text: str | None,
    tools: Tools,
    served_calls: Sequence[Mapping[str, Any]] | None,
) -> Fault | None:
    """Who is to blame: the model for a wrong raw text, the server's parser for what it made of a right one.

    Args:
        failures: what the checks say of the raw text.
        text: the raw text; None where the engine ended in an error instead, which is the server's fault.
        tools: the offered tools.
        served_calls: the calls as the server parsed them from the same raw text, as `{"name", "arguments"}` or
            OpenAI's `{"function": {"name", "arguments"}}`, the arguments as an object or as its JSON text; None where
            the engine gives raw text only.

    Returns:
        None where nothing is wrong.
    """
    if text is None:
        return "server"
    if failures:
        return "model"
    if served_calls is None:
        return None
    offered = schemas_by_name(tools)
    ours = [[call.name, typed_arguments(call, offered.get(call.name, {}))] for call in parse_reply(text).calls]
    return None if same_json(ours, [_served(call) for call in served_calls]) else "parser"


def _served(call: Mapping[str, Any]) -> list[Any]:
    """Name and arguments; arguments that are no JSON stay text, which equals no right ones."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(StrictJSONError):
            arguments = strict_json(arguments)
    return [function.get("name"), arguments]
