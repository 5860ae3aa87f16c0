"""A chat answer compared with the model's raw text: which of model, parser and server is at fault, and for what.

The raw text is the server's generated text of that answer, by its token ids. If it is right and the message differs,
the parser is at fault; if it is wrong, the model is; if the prompt differs from the branch's own template, the server
is. A malformed or cut raw text is not used to judge a parser.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from q36eval.canaries.cases import Case
from q36eval.canaries.checks import Reply, parse_reply, same_calls
from q36eval.canaries.checks.json_schema import schema_failures
from q36eval.canaries.checks.json_values import StrictJSONError, same_json, strict_json
from q36eval.canaries.checks.tool_parser import schemas_by_name, typed_arguments
from q36eval.engines.openai.chat_answers import Message
from q36eval.served.declared_server import FaultKind

THINK_END = "</think>"
MARKUP = (
    "<think>",
    THINK_END,
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
)
"""The marks of thoughts and tool calls."""
TAGS = (*MARKUP, "<|im_start|>", "<|im_end|>", "<|endoftext|>")
"""Marks that clients must not see: the template's and those of tool calls."""

UNDECODED = "\N{REPLACEMENT CHARACTER}"
"""The result of decoding bytes that are not a character."""

CallClass = Literal["InvalidJson", "UnknownName", "SchemaMismatch", "WrongArguments", "Missing", "Spurious"]


@dataclass(frozen=True)
class Written:
    """The model's raw text, parsed by the template's rules. `calls` are names and typed arguments."""

    thought: str | None
    """None if it did not think, or did not end its thought."""
    content: str
    reply: Reply

    @property
    def is_whole(self) -> bool:
        """Whether it has no malformed part."""
        return not self.reply.problems


def written(raw: str, *, thinking: bool) -> Written:
    """The raw text, parsed; with `thinking` it begins within a thought."""
    thought, answer = None, raw
    if thinking:
        before, mark, after = raw.partition(THINK_END)
        thought, answer = (before.removeprefix("<think>"), after) if mark else (None, "")
    reply = parse_reply(answer)
    return Written(thought, reply.before + reply.after if reply.tries_a_call else answer, reply)


def parser_faults(
    raw: str, message: Message, tools: Sequence[dict[str, Any]], *, thinking: bool, special: Collection[str] = ()
) -> dict[FaultKind, str]:
    """The differences of the message from the raw text, by kind, ignoring white space around texts.

    None for a malformed raw text, or one whose thought never ends: the parser cannot be judged on it. `special` are the
    tokenizer's special tokens, which a server omits or includes on request, so they are not the parser's fault; nor is
    an incomplete character in the last tokens.
    """
    faults, unseen = _faults(raw, message, tools, thinking=thinking), without_special(raw, special)
    if not faults or faults.keys() & {"arguments", "calls"} or not written(unseen, thinking=thinking).is_whole:
        return faults
    return min(_faults(unseen, message, tools, thinking=thinking), faults, key=len)


def without_special(raw: str, special: Collection[str]) -> str:
    """The text without special tokens, except for the marks of thoughts and calls."""
    for token in special:
        raw = raw if token in MARKUP else raw.replace(token, "")
    return raw


def _faults(raw: str, message: Message, tools: Sequence[dict[str, Any]], *, thinking: bool) -> dict[FaultKind, str]:
    own = written(raw, thinking=thinking)
    if not own.is_whole or (thinking and own.thought is None):
        return {}
    faults = dict(_call_faults(own, raw, message, tools))
    content, reasoning = message.content or "", message.reasoning or ""
    leaked = [tag for tag in TAGS if tag in content and tag not in own.content]
    if leaked:
        faults["tags"] = f"the content holds {leaked[0]}"
    if own.thought is not None and (not _says(reasoning, own.thought) or THINK_END in content):
        faults["thought"] = f"reasoning {reasoning!r:.60} where the model thought {own.thought!r:.60}"
    if not leaked and not _says(content, own.content):
        faults["content"] = f"content {message.content!r:.60} where the model wrote {own.content!r:.60}"
    return faults


def characters(text: str) -> str:
    """The text without an incomplete character at its end."""
    return text.rstrip(UNDECODED)


def _says(served: str, wrote: str) -> bool:
    """Whether both are the same text, ignoring white space around them; the served text may lack an incomplete
    character at its end, which a server that decodes token by token never sends."""
    return served.strip() in (wrote.strip(), characters(wrote.strip()).rstrip())


def _call_faults(
    own: Written, raw: str, message: Message, tools: Sequence[dict[str, Any]]
) -> Iterator[tuple[FaultKind, str]]:
    answer = raw.partition(THINK_END)[2] if own.thought is not None else raw
    names, served = [call.name for call in own.reply.calls], [name for name, _ in message.calls]
    as_served = [{"name": name, "arguments": arguments} for name, arguments in message.calls]
    if names != served:
        yield "calls", f"calls of {served} where the model called {names}"
    elif not same_calls(answer, tools, as_served):
        yield "arguments", f"arguments {' '.join(str(text) for _, text in message.calls)!r:.60}"
    if served and message.finish not in ("tool_calls", "length"):
        yield "finish", f"finish reason {message.finish} with {len(served)} calls"


def raw_calls(raw: str, tools: Sequence[dict[str, Any]], *, thinking: bool) -> list[tuple[str | None, Any]]:
    """The calls of a raw text as names and typed arguments; a malformed one is (None, None)."""
    reply = written(raw, thinking=thinking).reply
    offered = schemas_by_name(tools)
    calls: list[tuple[str | None, Any]] = [
        (call.name, typed_arguments(call, offered.get(call.name, {}))) for call in reply.calls
    ]
    return calls + [(None, None)] * (reply.attempts - len(calls)) if reply.problems else calls


def served_calls(message: Message) -> list[tuple[str | None, Any]]:
    """The calls of a message; arguments that are not a JSON object are None."""
    return [(name, _object(arguments)) for name, arguments in message.calls]


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        value = strict_json(text or "")
    except StrictJSONError:
        return None
    return value if isinstance(value, dict) else None


def call_class(case: Case, calls: Sequence[tuple[str | None, Any]]) -> CallClass | None:
    """The worst fault in the calls of an answer; None if they are right."""
    wanted = [call for call in case.expected.get("calls", [case.expected]) if call.get("name") is not None]
    if not calls:
        return "Missing" if wanted else None
    if not wanted:
        return "Spurious"
    offered = schemas_by_name(case.tools)
    for name, arguments in calls:
        if arguments is None:
            return "InvalidJson"
        if name not in offered:
            return "UnknownName"
        if schema_failures("", arguments, offered[name]):
            return "SchemaMismatch"
    if len(calls) != len(wanted):
        return "Missing" if len(calls) < len(wanted) else "Spurious"
    right = [[call["name"], call["arguments"]] for call in wanted]
    return None if same_json([list(call) for call in calls], right) else "WrongArguments"
