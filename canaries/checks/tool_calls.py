"""Tool calls: whether one is made, which tools, and their arguments typed by the tools' own schemas."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from canaries.checks._base import Check, Decision, Expected, Failure, Tools, place_of, shown
from canaries.checks._json import differences
from canaries.checks._schema import check_json_value, schema_failures
from canaries.checks._tool_decisions import call_decisions, no_call_decisions
from canaries.checks._tool_parser import Call, Reply, parse_reply
from canaries.checks._tool_types import schemas_by_name, typed_arguments

Schemas = dict[str, dict[str, Any]]


class ExpectedCall(Expected):
    """`name` and `arguments` of the one right call; arguments that were not asked for are left out."""

    name: str
    arguments: dict[str, Any]

    @model_validator(mode="after")
    def _arguments_are_json(self) -> "ExpectedCall":
        check_json_value(self.arguments, "arguments")
        return self


class WantedCall(ExpectedCall):
    """One of several right calls."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ExpectedCalls(Expected):
    """`calls`: all the right calls of one turn, in this order unless `any_order`."""

    calls: Annotated[list[WantedCall], Field(min_length=1)]
    any_order: bool = False


class ExpectedNoCall(Expected):
    """Nothing is needed to see that no call was made."""


def _form_failures(check: str, reply: Reply) -> Iterator[Failure]:
    """What is wrong with the form of the calls, whatever they ask for."""
    for code, place, message in reply.problems:
        yield Failure(check, code, place, message)
    if not reply.tries_a_call:
        yield Failure(check, "no_call", "answer", f"no call; says {shown(reply.before.strip())}")
    elif reply.calls and reply.after.strip():
        yield Failure(check, "text_after_call", "end", f"goes on with {shown(reply.after.strip())}")


def _call_failures(check: str, call: Call, wanted: ExpectedCall, offered: Schemas) -> Iterator[Failure]:
    place = f"call {call.number}: "
    if call.name != wanted.name:
        code = "wrong_tool" if call.name in offered else "unknown_tool"
        yield Failure(check, code, place + "name", f"calls {shown(call.name)}, not {shown(wanted.name)}")
        return
    schema = offered.get(call.name, {})
    arguments = typed_arguments(call, schema)
    yield from schema_failures(check, arguments, schema, place + "arguments")
    yield from differences(check, arguments, wanted.arguments, place + "arguments")


def _tool_call(text: str, expected: ExpectedCall, tools: Tools) -> Iterator[Failure]:
    reply = parse_reply(text)
    yield from _form_failures("tool_call", reply)
    if len(reply.calls) > 1:
        yield Failure("tool_call", "several_calls", "answer", f"{len(reply.calls)} calls instead of one")
    for call in reply.calls[:1]:
        yield from _call_failures("tool_call", call, expected, schemas_by_name(tools))


def _tool_calls(text: str, expected: ExpectedCalls, tools: Tools) -> Iterator[Failure]:
    check, reply, offered = "tool_calls", parse_reply(text), schemas_by_name(tools)
    yield from _form_failures(check, reply)
    matched = _matched(reply.calls, expected.calls, offered)
    numbers = [matched[index].number for index in sorted(matched)]
    if numbers != sorted(numbers) and not expected.any_order:
        yield Failure(check, "wrong_call_order", "calls", f"made in the order {numbers} of the wanted ones")
    for index in sorted(matched):
        yield from _call_failures(check, matched[index], expected.calls[index], offered)
    malformed = reply.attempts - len(reply.calls)
    missing = [wanted for index, wanted in enumerate(expected.calls) if index not in matched]
    if reply.attempts:
        for wanted in missing[malformed:]:
            yield Failure(check, "missing_call", "calls", f"no call of {shown(wanted.name)}")
    taken = {call.number for call in matched.values()}
    for call in reply.calls:
        if call.number not in taken:
            yield Failure(check, "extra_call", f"call {call.number}", f"calls {shown(call.name)} unasked")


def _matched(calls: Sequence[Call], wanted: Sequence[ExpectedCall], offered: Schemas) -> dict[int, Call]:
    """Which call stands for which wanted one: the right ones first, then those of the right tool, then the rest."""
    typed = {call.number: typed_arguments(call, offered.get(call.name, {})) for call in calls}

    def right(call: Call, one: ExpectedCall) -> bool:
        return call.name == one.name and not any(True for _ in differences("", typed[call.number], one.arguments, ""))

    def same_tool(call: Call, one: ExpectedCall) -> bool:
        return call.name == one.name

    def whatever(call: Call, one: ExpectedCall) -> bool:
        return True

    matched: dict[int, Call] = {}
    left = list(calls)
    for fits in (right, same_tool, whatever):
        for index, one in enumerate(wanted):
            call = next((call for call in left if index not in matched and fits(call, one)), None)
            if call is not None:
                matched[index] = call
                left.remove(call)
    return matched


def _no_tool_call(text: str, expected: ExpectedNoCall, tools: Tools) -> Iterator[Failure]:
    reply = parse_reply(text)
    if reply.tries_a_call:
        names = ", ".join(shown(call.name) for call in reply.calls[:5]) or "a malformed call"
        place = place_of(text, len(reply.before)) if reply.attempts else reply.problems[0][1]
        yield Failure("no_tool_call", "unwanted_call", place, f"calls {names} though nothing fits")


def _decide_calls(text: str, expected: Expected, tools: Tools) -> list[Decision]:
    return call_decisions(text, tools)


def _decide_no_call(text: str, expected: ExpectedNoCall, tools: Tools) -> list[Decision]:
    return no_call_decisions(text)


tool_call = Check("tool_call", ExpectedCall, _tool_call, _decide_calls)
tool_calls = Check("tool_calls", ExpectedCalls, _tool_calls, _decide_calls)
no_tool_call = Check("no_tool_call", ExpectedNoCall, _no_tool_call, _decide_no_call)
