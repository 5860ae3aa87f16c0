"""Tool calls read from raw text in the formats of `ToolFormat`, their arguments typed by the tools' schemas.

Calls between `<tool_call>` tags (Qwen's XML, Hermes JSON) are read in any family's answers, so that a call in the other
format is recognized. Special tokens are part of raw text; those that end a turn (`<|call|>`, `<|eom_id|>`) are not.

Server-side parsers have bugs, so a model is judged on its raw text. This module does not know the right calls:
`calls_fit` checks rules for any call, `same_calls` whether a server's parser read the same ones.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Literal

from q36eval.canaries.checks.base import Tools, place_of, shown
from q36eval.canaries.checks.json_schema import check_schema, schema_failures
from q36eval.canaries.checks.json_values import StrictJSONError, plain, read_json, same_json, strict_json
from q36eval.config.family import ToolFormat

QWEN3_XML: Final = "qwen3_xml"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALLS = 200
"""The maximum of calls read per answer, well formed or not; canaries need far fewer."""

_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>(?:\r?\n)?")
_PARAMETER_END = "</parameter>"
_FUNCTION_END = re.compile(r"\s*(</function>)\s*</tool_call>")
_JSON_END = re.compile(r"\s*</tool_call>")
_MISTRAL_NAME = re.compile(r"[ \n]{0,4}([^\s\[\]{}\"]+)[ \n]{0,4}(?:\[CALL_ID\]\w+)?\[ARGS\][ \n]{0,4}")
_MISTRAL_LIST = re.compile(r"\s*\[")
_MISTRAL_NEXT = re.compile(r"\s*([,\]])")
_HARMONY_NAME = re.compile(
    r"([\w.-]+) {0,4}(?:<\|channel\|>\w+ {0,4})?(?:<\|constrain\|> {0,4})?(?:\w+ {0,4})?<\|message\|>\s*"
)
_HARMONY_END = re.compile(r"<\|(?:call|end)\|>")
_NEXT_PART = re.compile(r"\n[ \t]{0,40}<(?:parameter|function)=|<tool_call>")
_BRACE = re.compile(r"\s*\{")

Span = tuple[int, int]


@dataclass(frozen=True)
class Spans:
    """The positions of a call's parts in the answer: characters [start, end)."""

    name: Span
    """A JSON object that holds name and arguments counts as the name."""

    arguments: dict[str, Span]
    close: Span
    """The end of the arguments: `</function>`, or the closing brace of the JSON call."""

    end: int
    """The character after the whole call."""

    opened: int
    """The character after the mark that opens the call."""

    json: int = -1
    """The start of the JSON; -1 in XML."""


@dataclass(frozen=True)
class Call:
    """One call as written. XML arguments are raw text until the tool's schema types them; JSON ones are typed.

    `number` counts from 1 over all calls of the answer, malformed ones included; `start` is where its opening mark is.
    """

    name: str
    arguments: dict[str, Any]
    tool_format: ToolFormat
    number: int
    start: int
    spans: Spans = field(compare=False, repr=False)

    @property
    def form(self) -> Literal["xml", "json"]:
        """The format of the arguments."""
        return "xml" if self.tool_format == QWEN3_XML else "json"


@dataclass(frozen=True)
class Reply:
    """A parsed answer: prose before the first call and after the last, the calls, the errors."""

    before: str
    calls: tuple[Call, ...]
    after: str
    problems: tuple[tuple[str, str, str], ...]
    """(code, place, message) of every malformed call."""

    attempts: int = 0
    """Calls that were started, well formed or not."""

    @property
    def tries_a_call(self) -> bool:
        """Whether the answer contains a call or the beginnings of one."""
        return bool(self.calls or self.problems)


class _CallSyntaxError(ValueError):
    def __init__(self, code: str, at: int, message: str) -> None:
        super().__init__(message)
        self.code, self.at = code, at


def parse_reply(text: str, tool_format: ToolFormat = QWEN3_XML) -> Reply:
    """Parse an answer of a family whose template demands that format. Never raises."""
    grammar = _GRAMMARS.get(tool_format, _TAGGED)
    first = grammar.opening.search(text)
    if first is None and grammar is not _TAGGED:
        return parse_reply(text)
    if first is None:
        return Reply(text, (), "", _stray_markup(text))
    calls: list[Call] = []
    problems: list[tuple[str, str, str]] = []
    position, number = first.start(), 0
    while (opening := grammar.opening.search(text, position)) is not None:
        number, at = number + 1, opening.start()
        if number > MAX_CALLS:
            problems.append(("too_many_calls", place_of(text, at), f"more than {MAX_CALLS} calls"))
            position = len(text)
            break
        between = text[position:at].strip().removesuffix(grammar.layout).strip()
        if between:
            message = f"{shown(between)} between two calls"
            problems.append(("text_between_calls", f"before call {number}, {place_of(text, position)}", message))
        try:
            made = grammar.read(text, opening, number)
            calls += made
            number, position = made[-1].number, made[-1].spans.end
        except _CallSyntaxError as error:
            code, message, position = _after_bad_call(text, opening, grammar, error)
            problems.append((code, f"call {number}, {place_of(text, error.at)}", message))
    return Reply(text[: first.start()], tuple(calls), text[position:], tuple(problems), number)


def _after_bad_call(
    text: str, opening: re.Match[str], grammar: "_Grammar", error: _CallSyntaxError
) -> tuple[str, str, int]:
    """Code, message, and the position to continue: after the call's end, or at the next call if it has none."""
    next_opening = grammar.opening.search(text, opening.end())
    following = len(text) if next_opening is None else next_opening.start()
    if grammar is not _TAGGED:
        return error.code, str(error), following
    close = text.find(CLOSE, opening.start(), following)
    if close >= 0:
        return error.code, str(error), close + len(CLOSE)
    return "unclosed_call", f"{CLOSE} is missing", following


def _stray_markup(text: str) -> tuple[tuple[str, str, str], ...]:
    marks = [(text.find(mark), mark) for mark in ("<function=", "<parameter=", CLOSE)]
    at, mark = min(((at, mark) for at, mark in marks if at >= 0), default=(-1, ""))
    return () if at < 0 else (("stray_markup", place_of(text, at), f"{mark} outside {OPEN}"),)


def _tagged_calls(text: str, opening: re.Match[str], number: int) -> list[Call]:
    start, body = opening.span()
    brace = _BRACE.match(text, body)
    if brace is None:
        return [_xml_call(text, start, body, number)]
    call = _json_call(text, (start, body), brace.end() - 1, number, "hermes")
    close = _JSON_END.match(text, call.spans.end)
    if close is None:
        raise _CallSyntaxError("malformed_call", call.spans.end, f"text between the JSON and {CLOSE}")
    return [_ending(call, close.end())]


def _llama_calls(text: str, opening: re.Match[str], number: int) -> list[Call]:
    """`{"name": …, "parameters": …}`, with or without `<|python_tag|>`; `arguments` is read as servers do."""
    tagged = text[opening.start()] == "<"
    opened = opening.end() if tagged else opening.start() + 1
    return [_json_call(text, (opening.start(), opened), opened - (not tagged), number, "llama_json")]


def _mistral_calls(text: str, opening: re.Match[str], number: int) -> list[Call]:
    """`[TOOL_CALLS]` before a list of JSON calls, or before `name[ARGS]{…}`."""
    name = _MISTRAL_NAME.match(text, opening.end())
    if name is not None:
        return [_named_call(text, opening.span(), name, number, "mistral")]
    bracket = _MISTRAL_LIST.match(text, opening.end())
    if bracket is None:
        raise _CallSyntaxError("malformed_call", opening.end(), "neither a list nor a name with [ARGS]")
    calls: list[Call] = []
    mark, position, sign = opening.span(), bracket.end(), ","
    while sign == ",":
        if len(calls) == MAX_CALLS:
            raise _CallSyntaxError("too_many_calls", position, f"more than {MAX_CALLS} calls")
        brace = _BRACE.match(text, position)
        if brace is None:
            raise _CallSyntaxError("malformed_call", position, "no JSON call in the list")
        mark = mark if not calls else (brace.end() - 1, brace.end())
        calls.append(_json_call(text, mark, brace.end() - 1, number + len(calls), "mistral"))
        after = _MISTRAL_NEXT.match(text, calls[-1].spans.end)
        if after is None:
            raise _CallSyntaxError("malformed_call", calls[-1].spans.end, "the list of calls does not end")
        position, sign = after.end(), after.group(1)
    return [*calls[:-1], _ending(calls[-1], position)]


def _harmony_calls(text: str, opening: re.Match[str], number: int) -> list[Call]:
    """`to=functions.NAME`, before or after the channel, and the arguments as the message."""
    name = _HARMONY_NAME.match(text, opening.end())
    if name is None:
        raise _CallSyntaxError("malformed_call", opening.end(), "no name with <|message|> after functions.")
    call = _named_call(text, opening.span(), name, number, "harmony")
    close = _HARMONY_END.match(text, call.spans.end)
    return [call if close is None else _ending(call, close.end())]


def _json_call(text: str, mark: Span, brace: int, number: int, tool_format: ToolFormat) -> Call:
    """One JSON object with `name` and `arguments`; `mark` are the characters that open the call."""
    value, end = _object(text, brace)
    keys = ("parameters", "arguments") if tool_format == "llama_json" else ("arguments",)
    arguments = next((value[key] for key in keys if isinstance(value.get(key), dict)), None)
    if arguments is None or not isinstance(value.get("name"), str):
        raise _CallSyntaxError("malformed_call", brace, f'a JSON call needs "name" and an object "{keys[0]}"')
    spans = Spans((brace, end), {}, (end - 1, end), end, mark[1], brace)
    return Call(value["name"], arguments, tool_format, number, mark[0], spans)


def _named_call(text: str, mark: Span, name: re.Match[str], number: int, tool_format: ToolFormat) -> Call:
    """The arguments as a JSON object after the name."""
    arguments, end = _object(text, name.end())
    spans = Spans(name.span(1), {}, (end - 1, end), end, mark[1], name.end())
    return Call(name.group(1), arguments, tool_format, number, mark[0], spans)


def _object(text: str, brace: int) -> tuple[dict[str, Any], int]:
    try:
        value, end = read_json(text, brace, exact=True)
    except StrictJSONError as error:
        raise _CallSyntaxError("malformed_call", error.at, str(error)) from error
    if not isinstance(value, dict):
        raise _CallSyntaxError("malformed_call", brace, "the call is not a JSON object")
    return value, end


def _ending(call: Call, end: int) -> Call:
    return replace(call, spans=replace(call.spans, end=end))


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
    parts = Spans(function.span(1), spans, close.span(1), close.end(), body)
    return Call(function.group(1), arguments, QWEN3_XML, number, start, parts)


@dataclass(frozen=True)
class _Grammar:
    """How calls of a format are read: where one may begin, what reads it, and what stands between two."""

    opening: re.Pattern[str]
    read: Callable[[str, re.Match[str], int], list[Call]]
    layout: str = ""


_TAGGED = _Grammar(re.compile(re.escape(OPEN)), _tagged_calls)
_GRAMMARS: dict[ToolFormat, _Grammar] = {
    "llama_json": _Grammar(
        re.compile(
            r"<\|python_tag\|>\s*|(?<!<tool_call>)(?<!<tool_call>\n)"
            r"\{(?=\s*\"(?:name|type|function|parameters|arguments)\"\s*:)"
        ),
        _llama_calls,
        layout=";",
    ),
    "mistral": _Grammar(re.compile(r"\[TOOL_CALLS\]"), _mistral_calls),
    "harmony": _Grammar(
        re.compile(r"<\|channel\|>\w+ to=functions\.|(?:\A|(?<=<\|start\|>assistant)) ?to=functions\."),
        _harmony_calls,
        layout="<|start|>assistant",
    ),
}
OPENINGS: dict[ToolFormat, str] = {
    QWEN3_XML: OPEN,
    "hermes": OPEN,
    "llama_json": '{"name":',
    "mistral": "[TOOL_CALLS]",
    "harmony": "<|channel|>commentary to=functions.",
}
"""How a call begins."""


_NUMBER = re.compile(r"-?(0|[1-9]\d{0,30})(\.\d{1,30})?([eE][+-]?\d{1,3})?", re.ASCII)
_UNREADABLE = object()
_MAX_REFERENCES = 16


def check_tools(tools: Tools) -> None:
    """Refuse tools for which no call can be judged.

    Raises:
        ValueError: a tool without a name, a duplicate name, or parameters that are not a JSON Schema of an object.
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
    """A tool's schema for one argument; empty without one."""
    described = parameters.get("properties", {}).get(key, parameters.get("additionalProperties"))
    return described if isinstance(described, dict) else {}


def typed_arguments(call: Call, parameters: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """The call's arguments as JSON values; numbers other than integers as `Decimal` if `exact`."""
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


def calls_fit(text: str, tools: Tools, tool_format: ToolFormat = QWEN3_XML) -> bool | None:
    """Whether every call is well formed, of an offered tool, and within that tool's schema; None without a call. Pure.

    Raises:
        NotJudgedError: a pattern of a tool's schema timed out.
    """
    reply, offered = parse_reply(text, tool_format), schemas_by_name(tools)
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
    """Name and arguments; arguments that are not JSON stay text, which never equals right ones."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(StrictJSONError):
            arguments = strict_json(arguments)
    return [function.get("name"), arguments]
