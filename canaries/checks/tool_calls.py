"""Tool calls judged: whether one is made, the tools, their arguments, the text around them; and the decisions."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from q36eval.canaries.checks.base import Check, Decision, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks.grounding import false_sentences
from q36eval.canaries.checks.json_schema import schema_failures
from q36eval.canaries.checks.json_values import differences, json_decisions, same_json, tokens
from q36eval.canaries.checks.prose import Piece, first_foreign, first_loop, scripts_exist
from q36eval.canaries.checks.tool_parser import (
    OPENINGS,
    QWEN3_XML,
    Call,
    Reply,
    parse_reply,
    property_schema,
    schemas_by_name,
    typed_arguments,
)
from q36eval.config.family import ToolFormat

_FIRST_WORD = re.compile(r"\S+")


def _decide_no_call(text: str, expected: "ExpectedNoCall", tools: Tools) -> list[Decision]:
    """The answer's first word is at the place where a call could have begun."""
    word = _FIRST_WORD.search(text)
    return [] if word is None else [Decision("call", word.start(), word.end(), (OPENINGS[expected.tool_format],))]


def _decide_calls(text: str, expected: "ExpectedAround", tools: Tools) -> list[Decision]:
    """For every call: that it is made, its tool, its arguments, and the end of the arguments."""
    offered = schemas_by_name(tools)
    decided: list[Decision] = []
    for call in parse_reply(text, expected.tool_format).calls:
        decided.append(Decision("call", call.start, call.spans.opened))
        others = tuple(name for name in offered if name != call.name)
        schema = offered.get(call.name, {})
        inner = _in_xml(text, call, others, schema) if call.form == "xml" else _in_json(text, call, others, schema)
        decided.extend(inner)
    return decided


def _in_xml(text: str, call: Call, others: tuple[str, ...], schema: dict[str, Any]) -> Iterator[Decision]:
    yield Decision("tool", *call.spans.name, others)
    values = typed_arguments(call, schema)
    for key, (start, end) in call.spans.arguments.items():
        described = property_schema(key, schema)
        if isinstance(values[key], (dict, list)):
            raw = text[start:end]
            yield from json_decisions(text, start + len(raw) - len(raw.lstrip()), described, "argument")
        elif end > start:
            yield Decision("argument", start, end, _wrong_text(text[start:end], values[key], described))
    # another argument could have followed
    yield Decision("close", *call.spans.close, ("<parameter=",))


def _wrong_text(raw: str, value: Any, schema: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(value, bool):
        other = str(not value)
        return (other if raw[0].isupper() else other.lower(),)
    return tuple(other for other in schema.get("enum", ()) if isinstance(other, str) and other != value)


def _in_json(text: str, call: Call, others: tuple[str, ...], schema: dict[str, Any]) -> Iterator[Decision]:
    start = call.spans.json
    if call.spans.name[0] != start:
        yield Decision("tool", *call.spans.name, others)
        yield from json_decisions(text, start, schema, "argument")
        return
    whole = {"properties": {"arguments": schema, "parameters": schema}}
    # an id or a type decides nothing
    values = {
        token.start: (token.path[0], token.end)
        for token in tokens(text, start)
        if token.kind == "value" and token.path[0] not in ('"arguments"', '"parameters"')
    }
    name, end = next((at, end) for at, (key, end) in values.items() if key == '"name"')
    yield Decision("tool", name + 1, end - 1, others)
    yield from (one for one in json_decisions(text, start, whole, "argument") if one.start not in values)


Schemas = dict[str, dict[str, Any]]


class ExpectedNoCall(Expected):
    """`tool_format`: the format of calls that the family's template demands."""

    tool_format: ToolFormat = QWEN3_XML


class ExpectedAround(ExpectedNoCall):
    """What the format of the calls is, and what a sentence before them may say.

    `scripts`: Unicode scripts of that sentence. `known`: what the
    conversation says; where it is given, the sentence may name no number and no date that stands neither there nor
    in the right arguments, nor deny what it says. `refusal`: the sentence for when no tool fits, which is false where
    one does.
    """

    scripts: Annotated[list[str], Field(min_length=1, default_factory=lambda: ["Latin"])]
    known: list[str] | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _known_scripts(self) -> "ExpectedAround":
        scripts_exist(self.scripts)
        return self


class WantedCall(Expected):
    """`name` and `arguments` of a right call. Any other argument was not requested, and is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    arguments: dict[str, Any]


class ExpectedCall(ExpectedAround):
    """`name` and `arguments` of the one right call."""

    name: str
    arguments: dict[str, Any]


class ExpectedCalls(ExpectedAround):
    """`calls`: all the right calls of one turn, in this order unless `any_order`."""

    calls: Annotated[list[WantedCall], Field(min_length=1)]
    any_order: bool = False


def _form_failures(check: str, reply: Reply, expected: ExpectedAround) -> Iterator[Failure]:
    """The faults in the form of the calls, whatever their content."""
    for code, place, message in reply.problems:
        yield Failure(check, code, place, message)
    if not reply.tries_a_call:
        yield Failure(check, "no_call", "answer", f"no call; says {shown(reply.before.strip())}")
    elif reply.calls and reply.after.strip():
        yield Failure(check, "text_after_call", "end", f"goes on with {shown(reply.after.strip())}")
    wrong = next((call for call in reply.calls if call.tool_format != expected.tool_format), None)
    if wrong is not None:
        message = f"a call as {_WORDS[wrong.tool_format]}, where the template demands {_WORDS[expected.tool_format]}"
        yield Failure(check, f"{wrong.tool_format.removeprefix('qwen3_')}_format", f"call {wrong.number}", message)


_WORDS: dict[ToolFormat, str] = {
    "qwen3_xml": "<function=NAME> and <parameter=KEY>",
    "hermes": "JSON",
    "llama_json": "JSON without tags",
    "mistral": "[TOOL_CALLS]",
    "harmony": "to=functions.NAME",
}


def _before_failures(
    check: str, text: str, before: str, expected: ExpectedAround, wanted: Sequence[WantedCall]
) -> Iterator[Failure]:
    """The faults of the sentence before the calls."""
    foreign = first_foreign(before, expected.scripts)
    if foreign is not None:
        message = f"{shown(before[foreign : foreign + 20])} is not {', '.join(expected.scripts)}"
        yield Failure(check, "script_switch", place_of(text, foreign), message)
    loop = first_loop(before)
    if loop is not None:
        yield Failure(check, "repetition", place_of(text, loop[0]), f"goes round in {shown(loop[1])}")
    refused = -1 if expected.refusal is None else before.casefold().find(expected.refusal.casefold().rstrip(" .!"))
    if refused >= 0:
        yield Failure(check, "false_sentence", place_of(text, refused), "says that no tool fits, and calls one")
    if expected.known is not None:
        known = [*expected.known, *(json.dumps(call.arguments, ensure_ascii=False) for call in wanted)]
        yield from false_sentences(check, text, Piece(0, len(before)), known, known)


def _call_failures(check: str, call: Call, wanted: WantedCall, offered: Schemas) -> Iterator[Failure]:
    place = f"call {call.number}: "
    if call.name != wanted.name:
        code = "wrong_tool" if call.name in offered else "unknown_tool"
        yield Failure(check, code, place + "name", f"calls {shown(call.name)}, not {shown(wanted.name)}")
        return
    schema = offered.get(call.name, {})
    arguments = typed_arguments(call, schema, exact=True)
    for key in _padded(call, arguments, wanted):
        message = f"{shown(arguments[key])} has white space around it: part of the value, or layout?"
        yield Failure(check, "padded_value", f"{place}arguments.{key}"[:200], message, unreadable=True)
        arguments[key] = wanted.arguments[key]
    yield from schema_failures(check, arguments, schema, place + "arguments")
    yield from differences(check, arguments, wanted.arguments, place + "arguments")


def _padded(call: Call, arguments: dict[str, Any], wanted: WantedCall) -> list[str]:
    """Texts in XML that are right except for surrounding white space."""
    if call.form != "xml":
        return []
    right = {key: value for key, value in wanted.arguments.items() if isinstance(value, str)}
    said = {key: value for key, value in arguments.items() if key in right and isinstance(value, str)}
    return [key for key, value in said.items() if value != right[key] and value.strip() == right[key].strip()]


def _tool_call(text: str, expected: ExpectedCall, tools: Tools) -> Iterator[Failure]:
    check, reply = "tool_call", parse_reply(text, expected.tool_format)
    yield from _form_failures(check, reply, expected)
    if len(reply.calls) > 1:
        yield Failure(check, "several_calls", "answer", f"{len(reply.calls)} calls instead of one")
    for call in reply.calls[:1]:
        wanted = WantedCall(name=expected.name, arguments=expected.arguments)
        yield from _call_failures(check, call, wanted, schemas_by_name(tools))
        yield from _before_failures(check, text, reply.before, expected, [wanted])


def _tool_calls(text: str, expected: ExpectedCalls, tools: Tools) -> Iterator[Failure]:
    check, reply, offered = "tool_calls", parse_reply(text, expected.tool_format), schemas_by_name(tools)
    yield from _form_failures(check, reply, expected)
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
    if reply.calls:
        yield from _before_failures(check, text, reply.before, expected, expected.calls)


def _matched(calls: Sequence[Call], wanted: Sequence[WantedCall], offered: Schemas) -> dict[int, Call]:
    """The assignment of calls to wanted ones: the right ones first, then those of the right tool, then the rest."""
    typed = {call.number: typed_arguments(call, offered.get(call.name, {}), exact=True) for call in calls}
    rules: list[Callable[[Call, WantedCall], bool]] = [
        lambda call, one: call.name == one.name and same_json(typed[call.number], one.arguments),
        lambda call, one: call.name == one.name,
        lambda call, one: True,
    ]
    matched: dict[int, Call] = {}
    left = list(calls)
    for fits in rules:
        for index, one in enumerate(wanted):
            call = next((call for call in left if index not in matched and fits(call, one)), None)
            if call is not None:
                matched[index] = call
                left.remove(call)
    return matched


def _no_tool_call(text: str, expected: ExpectedNoCall, tools: Tools) -> Iterator[Failure]:
    reply = parse_reply(text, expected.tool_format)
    if reply.tries_a_call:
        names = ", ".join(shown(call.name) for call in reply.calls[:5]) or "a malformed call"
        place = place_of(text, len(reply.before)) if reply.attempts else reply.problems[0][1]
        yield Failure("no_tool_call", "unwanted_call", place, f"calls {names} though nothing fits")


tool_call = Check("tool_call", ExpectedCall, _tool_call, _decide_calls)
tool_calls = Check("tool_calls", ExpectedCalls, _tool_calls, _decide_calls)
no_tool_call = Check("no_tool_call", ExpectedNoCall, _no_tool_call, _decide_no_call)
