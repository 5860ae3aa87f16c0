"""A production transcript (OpenAI chat messages as JSON) and its right answer become a canary's file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from q36eval.canaries.checks import check_tools, parse_reply, run_checks
from q36eval.canaries.checks.json_values import StrictJSONError, strict_json
from q36eval.canaries.checks.tool_parser import schemas_by_name, typed_arguments
from q36eval.canaries.generators.tools import call_text
from q36eval.canaries.specification import CanarySpec, check_messages
from q36eval.errors import UsageError
from q36eval.files import first_problem
from q36eval.records import Lane

MIN_BUDGET, MAX_BUDGET = 64, 4_096
THINKING_BUDGET = 2_048
"""Tokens that an answer may take: at least, at most, and for reasoning in addition."""

_FREEFORM = frozenset({"style", "stable", "discount"})


# ---- the transcript


def _joined(content: Any) -> Any:
    """Text, or the text of a list of parts; an assistant message that only calls tools has none."""
    if not isinstance(content, list):
        return "" if content is None else content
    return "".join(TypeAdapter(_Part).validate_python(part).text for part in content)


def _mapping(arguments: Any) -> Any:
    """OpenAI writes arguments as a JSON string; a chat template iterates over a mapping."""
    return from_json(arguments or "{}") if isinstance(arguments, str) else arguments


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[dict[str, Any], BeforeValidator(_mapping)]


class _Call(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    role: Annotated[str, BeforeValidator(lambda role: "system" if role == "developer" else role)]
    content: Annotated[str, BeforeValidator(_joined)] = ""
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None

    @property
    def wire_text(self) -> str:
        """The message as the model writes it: text, then Qwen's XML for every call."""
        calls = [call_text(call.function.name, call.function.arguments) for call in self.tool_calls or ()]
        return "\n".join(text for text in (self.content.strip(), *calls) if text)


class _Schema(BaseModel):
    json_schema: dict[str, Any] = {}


class _Template(BaseModel):
    enable_thinking: bool = False


class Transcript(BaseModel):
    """A request and, as its last message, the answer that was given; other keys of the request are ignored."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    response_format: _Schema = _Schema()
    chat_template_kwargs: _Template = _Template()

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages before the answer, as a specification holds them."""
        messages = self.messages if self.answer is None else self.messages[:-1]
        return [message.model_dump(exclude_none=True) for message in messages]

    @property
    def answer(self) -> str | None:
        """The answer that was given, in the model's wire format; None where the transcript ends with a question."""
        return self.messages[-1].wire_text if self.messages[-1].role == "assistant" else None


def read_transcript(file: Path) -> Transcript:
    """Read `{"messages": [...], "tools": [...]}`, a bare list of messages or, from a `.txt` file, one prompt.

    Raises:
        UsageError: unreadable, not JSON, or not a conversation that a model can answer; the message names the place.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("file-unreadable", f"The transcript {file} cannot be read: {error}.") from error
    try:
        body = [{"role": "user", "content": text}] if file.suffix == ".txt" else from_json(text, allow_inf_nan=False)
        transcript = Transcript.model_validate({"messages": body} if isinstance(body, list) else body)
        check_messages(transcript.conversation)
        check_tools(transcript.tools)
    except ValueError as error:
        problem = first_problem(error, Transcript) if isinstance(error, ValidationError) else str(error)
        raise UsageError("transcript-invalid", f"{file}: {problem}.") from error
    return transcript


def answer_text(text: str) -> str:
    """An answer as a person gives it: raw text, or an OpenAI assistant message as JSON, which becomes raw text.

    Raises:
        UsageError: the message is malformed.
    """
    try:
        body = from_json(text)
        message = isinstance(body, dict) and body.get("role") == "assistant"
        return _Message.model_validate(body).wire_text if message else text
    except ValidationError as error:
        raise UsageError("transcript-invalid", f"The answer: {first_problem(error, _Message)}.") from error
    except ValueError:
        return text


# ---- the canary


def scaffold(
    transcript: Transcript,
    right: str,
    id: str,
    why: str,
    *,
    wrong: Sequence[str] = (),
    checks: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A canary with one must-pass prompt, as its file will hold it.

    Args:
        transcript: what was asked. Its answer, where it has one, is a wrong one.
        right: the right answer, raw text in the model's own wire format.
        id: the canary's id.
        why: what went wrong.
        wrong: answers that must fail.
        checks: the checks by name, each with the expected values that the right answer does not show; guessed from the
            right answer's form if None.

    Raises:
        UsageError: the checks need more than the answer shows, the right answer fails them, or a wrong one passes.
    """
    checks = checks or {guess_check(right, transcript): {}}
    wrong = [*wrong, *([] if transcript.answer is None else [transcript.answer])]
    thinking = transcript.chat_template_kwargs.enable_thinking
    expected: dict[str, Any] = {}
    for name, given in checks.items():
        expected |= _shown(name, right, transcript) | given
    prompt = {
        "name": "incident",
        "key": f"incident:{id}",
        "messages": transcript.conversation,
        "tools": transcript.tools,
        "expected": expected,
        "answer": right,
    }
    # twice as long as the right answer, with one token per character at worst
    budget = min(max(2 * len(right), MIN_BUDGET), MAX_BUDGET) + (THINKING_BUDGET if thinking else 0)
    body = {
        "id": id,
        "skill": "incident",
        "absolute": True,
        "lanes": [(Lane.FREEFORM if _FREEFORM & set(checks) else Lane.STRUCTURED).value],
        "why": why,
        "generation": {"enable_thinking": thinking, "max_new_tokens": budget},
        "checks": list(checks),
        "must_pass": [{key: value for key, value in prompt.items() if value or key == "expected"}],
    }
    try:
        CanarySpec.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error, CanarySpec)
        raise UsageError("canary-invalid", f"This cannot become a canary: {problem}.") from error
    tools = transcript.tools
    passing = next((answer for answer in wrong if not run_checks(answer, list(checks), expected, tools)), None)
    if passing is not None:
        raise UsageError(
            "canary-shows-nothing",
            f"The wrong answer {passing[:60]!r} passes {', '.join(checks)}, so this canary would find nothing wrong "
            "with it; name another --check.",
        )
    return body


def guess_check(right: str, transcript: Transcript) -> str:
    """What judges an answer of this form: calls, JSON, else the exact text."""
    calls = parse_reply(right).calls
    if calls:
        return "tool_call" if len(calls) == 1 else "tool_calls"
    if transcript.tools:
        return "no_tool_call"
    return "json" if isinstance(_json_or_none(right), dict | list) else "exact_text"


def _shown(check: str, right: str, transcript: Transcript) -> dict[str, Any]:
    """The expected values that the right answer itself shows. All others are given with the check."""
    match check:
        case "tool_call" | "tool_calls":
            calls, form = _calls(right, transcript)
            return ({"calls": calls, "any_order": False} if check == "tool_calls" else dict(*calls[:1])) | form
        case "json" if (value := _json_or_none(right)) is not None:
            schema = transcript.response_format.json_schema.get("schema")
            return {"object": value} | ({"schema": schema} if schema else {})
        case "exact_text" | "enum_member":
            return {"text" if check == "exact_text" else "value": right.strip()}
    return {}


def _calls(right: str, transcript: Transcript) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The calls of the right answer, typed by the offered tools, and the format where they are JSON."""
    offered = schemas_by_name(transcript.tools)
    calls = parse_reply(right).calls
    unknown = next((call.name for call in calls if call.name not in offered), None)
    if unknown is not None:
        raise UsageError("tool-unknown", f"The right answer calls {unknown!r}, which the transcript does not offer.")
    typed = [{"name": call.name, "arguments": typed_arguments(call, offered[call.name])} for call in calls]
    return typed, {"tool_format": "hermes"} if {call.form for call in calls} == {"json"} else {}


def _json_or_none(text: str) -> Any:
    try:
        return strict_json(text)
    except StrictJSONError:
        return None


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """A canary is read as it is asked: every value stands where it is used."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Several lines as a literal block if the emitter can keep every character in one, else plain or quoted."""
    printable = all(line.isprintable() for line in text.split("\n"))
    style = '"' if not printable else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def yaml_text(body: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """The file of a scaffolded canary; `remarks` are what its reviewer has to check by hand."""
    comments = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks)
    return comments + yaml.dump(body, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=float("inf"))
