"""The answers of `/v1/chat/completions`, whole or streamed, in one form: content, reasoning, calls as clients see them.

Nothing is repaired here: arguments that are not JSON stay text, and null content stays null.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from q36eval.engines.openai.answers import Answered, Name, TokenId, Usage, read_as
from q36eval.engines.openai.client import MalformedError


class Function(Answered):
    """Name and arguments of a call; streamed, a part of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Answered):
    """A call, or streamed a part of the call of that index."""

    index: int | None = None
    function: Function = Field(default_factory=Function)


class Said(Answered):
    """A message, or an increment in a stream. Servers use either name for the reasoning."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Answered):
    """One answer; of a stream, one piece of it."""

    index: int = 0
    message: Said | None = None
    delta: Said | None = None
    finish_reason: Name | None = None
    token_ids: list[TokenId] | None = None


class Chat(Answered):
    """The answer of `/v1/chat/completions`; for a stream one event; the last may have no choice."""

    model: str
    choices: list[ChatChoice] = Field(max_length=1)
    usage: Usage | None = None
    prompt_token_ids: list[TokenId] | None = None


@dataclass(frozen=True)
class Message:
    """A chat answer as a client sees it. `calls` are names and the text of their arguments.

    `token_ids` and `prompt_ids` are the server's generated and prompt tokens; None if not reported.
    """

    content: str | None
    reasoning: str | None
    calls: tuple[tuple[str | None, str | None], ...]
    finish: str | None
    token_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = field(default=None, compare=False)


def message_of(content: Any) -> Message:
    """The message of a whole answer.

    Raises:
        MalformedError: it has none.
    """
    answer = read_as(Chat, content)
    if not answer.choices or answer.choices[0].message is None:
        raise MalformedError("the answer has no message")
    choice, said = answer.choices[0], answer.choices[0].message
    assert said is not None, "it was looked at above"
    calls = [(call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    ids = None if choice.token_ids is None else tuple(choice.token_ids)
    return _message(answer, said, calls, choice.finish_reason, ids, answer.prompt_token_ids)


def streamed_message(events: Sequence[Any]) -> Message:
    """The message that a client assembles from a stream, piece by piece in order.

    Raises:
        MalformedError: the stream has no message, or a piece of a call has no index.
    """
    chunks = [read_as(Chat, event) for event in events]
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    if not pieces:
        raise MalformedError("the stream has no piece of a message")
    deltas = [piece.delta for piece in pieces if piece.delta is not None]
    calls: dict[int, tuple[str | None, str | None]] = {}
    for part in (part for delta in deltas for part in delta.tool_calls or ()):
        if part.index is None:
            raise MalformedError("a piece of a tool call does not say of which call")
        name, arguments = calls.get(part.index, (None, None))
        calls[part.index] = (_joined(name, part.function.name), _joined(arguments, part.function.arguments))
    said = Said(
        content=_all(delta.content for delta in deltas),
        reasoning=_all(delta.reasoning or delta.reasoning_content for delta in deltas),
    )
    finishes = [piece.finish_reason for piece in pieces if piece.finish_reason is not None]
    ids = [token for piece in pieces for token in piece.token_ids or ()]
    tells_ids = any(piece.token_ids is not None for piece in pieces)
    prompt = next((chunk.prompt_token_ids for chunk in chunks if chunk.prompt_token_ids is not None), None)
    last = next((chunk for chunk in reversed(chunks) if chunk.usage is not None), chunks[-1])
    ordered = [calls[index] for index in sorted(calls)]
    finish = finishes[-1] if finishes else None
    return _message(last, said, ordered, finish, tuple(ids) if tells_ids else None, prompt)


def _message(
    answer: Chat,
    said: Said,
    calls: Sequence[tuple[str | None, str | None]],
    finish: str | None,
    ids: tuple[int, ...] | None,
    prompt: Sequence[int] | None,
) -> Message:
    return Message(
        content=said.content,
        reasoning=said.reasoning if said.reasoning is not None else said.reasoning_content,
        calls=tuple(calls),
        finish=finish,
        token_ids=ids,
        prompt_ids=None if prompt is None else tuple(prompt),
        prompt_tokens=None if answer.usage is None else answer.usage.prompt_tokens,
        completion_tokens=None if answer.usage is None else answer.usage.completion_tokens,
    )


def _all(parts: Any) -> str | None:
    given = [part for part in parts if part is not None]
    return "".join(given) if given else None


def _joined(so_far: str | None, part: str | None) -> str | None:
    return so_far if part is None else (so_far or "") + part
