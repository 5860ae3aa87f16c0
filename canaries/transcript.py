"""A production transcript, OpenAI chat messages as JSON, turned into what a chat template wants."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError

MAX_BYTES = 2_000_000
"""A transcript beyond this does not fit a canary, which is read by a person."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True)
class Transcript:
    """What was asked, and the answer that was given, as raw text in the model's own wire format (None: there is none).

    `schema` is the JSON Schema that was asked for as `response_format`, `thinking` and `max_new_tokens` what the
    request said of them.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    answer: str | None = None
    schema: dict[str, Any] | None = None
    thinking: bool | None = None
    max_new_tokens: int | None = None


class _TranscriptError(ValueError):
    """What is wrong, without the file it is wrong in."""


def read_transcript(file: Path) -> Transcript:
    """Read `{"messages": [...], "tools": [...]}` or a bare list of messages; the last may be the answer given.

    Raises:
        UsageError: unreadable, not JSON, or not such messages; one sentence that names the place.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UsageError(
                "file-too-large", f"{file} has more than {MAX_BYTES:,} bytes; cut the transcript down to the incident."
            )
        text = file.read_text(encoding="utf-8")
        body = json.loads(text, parse_constant=_no_constant)
    except UnicodeError as error:
        raise UsageError("file-not-utf8", f"{file} is not UTF-8; save the transcript as UTF-8 text.") from error
    except OSError as error:
        raise UsageError(
            "file-unreadable", f"{file} cannot be read ({error.strerror or error}); check the path."
        ) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(
            "json-malformed", f"{file} is not JSON ({where}); save the messages as one JSON document."
        ) from error
    except (RecursionError, ValueError) as error:
        raise UsageError("json-malformed", f"{file} is not JSON that can be read ({type(error).__name__}).") from error
    try:
        return transcript_of(body)
    except _TranscriptError as error:
        raise UsageError("transcript-invalid", f"{file}: {error}.") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def transcript_of(body: Any) -> Transcript:
    """The transcript in a parsed document.

    Raises:
        ValueError: it is none; says where.
    """
    request = body if isinstance(body, dict) else {"messages": body}
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise _TranscriptError('it has no messages: give {"messages": [...]} or a list of messages')
    if not messages:
        raise _TranscriptError("its list of messages is empty")
    _check_surrogates(body)
    read = [_message(message, number) for number, message in enumerate(messages, 1)]
    answer = None
    if read[-1]["role"] == "assistant":
        answer = wire_text(read.pop())
    _check_order(read)
    budget = request.get("max_completion_tokens", request.get("max_tokens"))
    thinking = _mapping(request.get("chat_template_kwargs")).get("enable_thinking")
    return Transcript(
        messages=tuple(read),
        tools=tuple(_tools(request)),
        answer=answer,
        schema=_schema(request),
        thinking=thinking if isinstance(thinking, bool) else None,
        max_new_tokens=budget if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0 else None,
    )


def answer_text(text: str) -> str:
    """A right answer as a person gives it: raw text, or an OpenAI assistant message as JSON, which becomes raw text.

    Raises:
        UsageError: several messages, or one that is no answer.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(body, list) and body and all(isinstance(one, dict) and "role" in one for one in body):
        raise UsageError("answer-ambiguous", f"There are {len(body)} right answers; give exactly one.")
    if not isinstance(body, dict) or body.get("role") != "assistant":
        return text
    try:
        return wire_text(_message(body, 1))
    except _TranscriptError as error:
        raise UsageError("transcript-invalid", f"The right answer: {error}.") from error


def wire_text(message: dict[str, Any]) -> str:
    """An assistant message as the model writes it: text, then Qwen's XML for every call."""
    parts = [message["content"].strip()] if message["content"].strip() else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        lines = ["<tool_call>", f"<function={function['name']}>"]
        for key, value in function["arguments"].items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"<parameter={key}>", written, "</parameter>"]
        parts.append("\n".join([*lines, "</function>", "</tool_call>"]))
    return "\n".join(parts)


def _message(message: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise _TranscriptError(f"{where} is not a mapping with role and content")
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise _TranscriptError(f"{where} has the role {message.get('role')!r}; there are {', '.join(_ROLES)}")
    read: dict[str, Any] = {"role": role, "content": _content(message.get("content"), where)}
    calls = message.get("tool_calls")
    if message.get("function_call") is not None:  # how calls were written before there could be several
        calls = [{"function": message["function_call"]}]
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise _TranscriptError(f"{where} has tool calls, which only an assistant message may have, as a list")
        read["tool_calls"] = [_call(call, where) for call in calls]
    elif message.get("content") is None:
        raise _TranscriptError(f"{where} has neither content nor tool calls")
    reasoning = message.get("reasoning_content")
    return read | ({"reasoning_content": reasoning} if isinstance(reasoning, str) and reasoning else {})


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _TranscriptError(f"{where} has content that is neither text nor a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise _TranscriptError(f"{where} has a part of the type {kind!r}; canaries support text only")
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    """OpenAI writes arguments as a JSON string; a chat template iterates over a mapping."""
    function = call.get("function", call) if isinstance(call, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise _TranscriptError(f"{where} has a tool call without a name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise _TranscriptError(f"{where}: the arguments of the call of {name!r} are not JSON") from error
    if not isinstance(arguments, dict):
        raise _TranscriptError(f"{where}: the arguments of the call of {name!r} are not a JSON object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(request: dict[str, Any]) -> list[dict[str, Any]]:
    tools = request.get("tools") or request.get("functions") or []
    if not isinstance(tools, list):
        raise _TranscriptError("its tools are not a list")
    functions = []
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _TranscriptError(f"tool {number} is not a function with a name")
        kept = {key: function[key] for key in ("name", "description", "parameters") if key in function}
        functions.append({"type": "function", "function": kept})
    return functions


def _schema(request: dict[str, Any]) -> dict[str, Any] | None:
    wanted = _mapping(request.get("response_format"))
    schema = _mapping(wanted.get("json_schema")).get("schema")
    return schema if wanted.get("type") == "json_schema" and isinstance(schema, dict) else None


def _check_order(messages: Sequence[dict[str, Any]]) -> None:
    """What Qwen's templates refuse: a late system message, and nothing to answer."""
    late = next((n for n, message in enumerate(messages, 1) if n > 1 and message["role"] == "system"), None)
    if late is not None:
        raise _TranscriptError(f"message {late} is a system message; Qwen's templates take one only as the first")
    if not any(message["role"] == "user" for message in messages):
        raise _TranscriptError("it has no user message, so there is nothing to answer")
    if messages[-1]["role"] == "assistant":
        raise _TranscriptError("it ends with two assistant messages; keep only the wrong answer as the last one")


def _check_surrogates(value: Any) -> None:
    """JSON can carry half a surrogate pair, which no file in UTF-8 and no tokenizer can."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _TranscriptError("it contains half a surrogate pair, which is not a character; replace it") from error
    except (RecursionError, ValueError) as error:
        raise _TranscriptError("it is nested too deeply") from error


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
