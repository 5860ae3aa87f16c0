"""Conversations as a model's own chat template writes them: as transformers does, under limits."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from q36eval.chat.rendering import Renderer, TemplateLimitError, TemplateMalformedError, TemplateRaisedError

__all__ = [
    "TemplateLimitError",
    "TemplateMalformedError",
    "TemplateRaisedError",
    "continued_chat",
    "rendered_chat",
    "renderer",
    "with_call_ids",
]

TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""The mark by which the end of the last message is found again; as transformers has it, so that texts are equal."""


@cache
def renderer() -> Renderer:
    """That of this process."""
    return Renderer()


def rendered_chat(
    tokenizer: Any,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    *,
    enable_thinking: bool,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt as text, up to where the assistant begins to answer (or to the end of the last message).

    The same text as `tokenizer.apply_chat_template` gives.

    Raises:
        TemplateRaisedError: the template does not write this conversation, and says why; or there is none.
        TemplateLimitError: it takes too long, too much memory, or writes too much.
    """
    if not tokenizer.chat_template:
        raise TemplateMalformedError("chat-template-missing", f"{tokenizer.name_or_path} has no chat template")
    template = tokenizer.get_chat_template(None, list(tools) or None)
    variables = {
        **tokenizer.special_tokens_map,
        "messages": list(messages),
        "tools": list(tools) or None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "enable_thinking": enable_thinking,
    }
    try:
        return renderer().render(template, variables)
    except TemplateLimitError as error:
        raise TemplateLimitError(
            error.code, f"{_place(tokenizer, template)} cannot be used: {error}; correct it."
        ) from None
    except TemplateRaisedError as error:
        words = " ".join(str(error).split())
        raise TemplateRaisedError(
            error.code, f"{_place(tokenizer, template)} does not write this conversation: {words}"
        ) from None


def continued_chat(tokenizer: Any, messages: Sequence[dict[str, Any]], *, enable_thinking: bool) -> str:
    """The prompt up to the end of the last message, which the model continues: nothing that closes it is there.

    Raises:
        TemplateRaisedError, TemplateLimitError: as `rendered_chat`; the former also where the template does not write
            the last message as it is.
    """
    last = messages[-1]["content"]
    marked = [*messages[:-1], {**messages[-1], "content": last + TAG}]
    text = rendered_chat(tokenizer, marked, enable_thinking=enable_thinking, add_generation_prompt=False)
    at = text.rfind(TAG.strip())
    if at < 0 or last.strip() not in text:
        raise TemplateRaisedError(
            "template-drops-text", "The chat template leaves out parts of the message that is to be continued."
        )
    # a template that trims what a message ends with has trimmed the mark's own space
    return text[:at] if text[at : at + len(TAG)] == TAG else text[:at].rstrip()


def with_call_ids(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages with ids of earlier calls, and their results with those and the tool's name: Mistral's templates
    demand ids of nine letters and digits."""
    waiting: list[dict[str, Any]] = []
    number = 0
    for message in messages:
        if message.get("tool_calls"):
            calls = [{"type": "function", "function": call.get("function", call)} for call in message["tool_calls"]]
            waiting = [{**call, "id": f"call{number + at:05d}"} for at, call in enumerate(calls)]
            number += len(calls)
            yield {**message, "tool_calls": list(waiting)}
        elif message["role"] == "tool" and waiting:
            call = waiting.pop(0)
            yield {**message, "tool_call_id": call["id"], "name": call["function"]["name"]}
        else:
            yield message


def _place(tokenizer: Any, template: str) -> str:
    """Which template, and which file it is in."""
    folder, known = Path(str(getattr(tokenizer, "name_or_path", "."))), tokenizer.chat_template
    named = (
        next((name for name, text in known.items() if text == template), "default")
        if isinstance(known, dict)
        else "default"
    )
    file = "chat_template.jinja" if named == "default" else f"additional_chat_templates/{named}.jinja"
    if not (folder / file).is_file():
        file = "tokenizer_config.json"
    which = "" if named == "default" else f" {named!r}"
    return f"The chat template{which} in {folder / file}"
