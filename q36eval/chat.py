"""Conversations as a model's own chat template writes them."""

from collections.abc import Sequence
from typing import Any


def rendered_chat(
    tokenizer: Any, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, enable_thinking: bool
) -> str:
    """The prompt as text, up to where the assistant begins to answer."""
    text = tokenizer.apply_chat_template(
        list(messages),
        tools=list(tools) or None,
        add_generation_prompt=True,
        enable_thinking=enable_thinking,
        tokenize=False,
    )
    return str(text)
