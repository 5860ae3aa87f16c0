"""A production transcript, OpenAI chat messages as JSON, as a chat template reads it."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from q36eval.canaries.checks import check_tools
from q36eval.canaries.generators.tools import call_text
from q36eval.canaries.specification import check_messages
from q36eval.errors import UsageError
from q36eval.files import first_problem


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
        return wire_text(self.messages[-1]) if self.messages[-1].role == "assistant" else None

    @property
    def schema_wanted(self) -> dict[str, Any] | None:
        """The JSON Schema that the request demanded of the answer."""
        return self.response_format.json_schema.get("schema")


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
    except ValueError:
        return text
    if not isinstance(body, dict) or body.get("role") != "assistant":
        return text
    try:
        return wire_text(_Message.model_validate(body))
    except ValidationError as error:
        raise UsageError("transcript-invalid", f"The answer: {first_problem(error, _Message)}.") from error


def wire_text(message: _Message) -> str:
    """An assistant message as the model writes it: text, then Qwen's XML for every call."""
    said = message.content.strip()
    calls = [call_text(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return "\n".join([said, *calls] if said else calls)
