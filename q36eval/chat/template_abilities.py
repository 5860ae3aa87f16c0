"""What a checkpoint's chat template writes, found by rendering it: a template may drop tools or a system message."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from q36eval.chat import rendered_chat, with_call_ids
from q36eval.chat.rendering import TemplateLimitError, TemplateRaisedError
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.tokenizer import chat_templates
from q36eval.config.family import ChatTemplate, ToolFormat
from q36eval.errors import CorruptCheckpointError

SYSTEM, ASKED, RESULT = "Answer kindly, colleague 4711.", "Which way is Zabrdovice?", "North-north-west, 1,234 steps."
OTHER_RESULT = "Due east, 97 steps."
NAME, KEY, VALUE, OTHER = "compass_lookup", "destination_town", "Zabrdovice-Dolina", "Lesna-Horni"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Find the direction of a town.",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "The town."}},
            "required": [KEY],
        },
    },
}
USER = {"role": "user", "content": ASKED}
CALLS = [{"type": "function", "function": {"name": NAME, "arguments": {KEY: value}}} for value in (VALUE, OTHER)]

_BODY = rf'\{{\s*"name":\s*"{NAME}",\s*"%s":\s*\{{\s*"{KEY}":'
_FORMATS: dict[ToolFormat, re.Pattern[str]] = {
    "qwen3_xml": re.compile(rf"<tool_call>\s*<function={NAME}>\s*<parameter={KEY}>\s*{VALUE}\s*</parameter>"),
    "hermes": re.compile(r"<tool_call>\s*" + _BODY % "arguments"),
    "mistral": re.compile(
        rf"\[TOOL_CALLS\]\s*(?:\[\s*{_BODY % 'arguments'}|{NAME}\s*(?:\[CALL_ID\]\w+)?\[ARGS\]\s*\{{)"
    ),
    "harmony": re.compile(rf'to=functions\.{NAME}[^{{]{{0,80}}<\|message\|>\{{\s*"{KEY}":'),
    "llama_json": re.compile(r"(?:^|[\s>])" + _BODY % "parameters"),
}
"""How a call looks in each, tried in this order."""


@dataclass(frozen=True)
class Abilities:
    """What a template writes, and the format of its tool calls; None where it writes none or in another format."""

    template: ChatTemplate
    tool_format: ToolFormat | None = None


def abilities_of(folder: str | Path | HeldFolder) -> Abilities:
    """What the chat template of a checkpoint folder or a GGUF writes; its tokenizer is not loaded.

    Raises:
        EngineError: the process that renders was ended by something else.
    """
    nothing = ChatTemplate(present=False, system=False, tools=False, results=False, thinking="never")
    try:
        held = hold(folder)
        templates = chat_templates(held)
        if not templates.get("default"):
            return Abilities(nothing)
        tokenizer = _Templates(templates, _special_tokens(held), str(held.path))
        if ASKED in rendered_chat(tokenizer, [USER], enable_thinking=False):
            return _abilities(tokenizer)
        trouble = "it does not write the user's message"
    except (CorruptCheckpointError, TemplateLimitError, TemplateRaisedError) as error:
        trouble = str(error).removesuffix(".")
    return Abilities(nothing.model_copy(update={"trouble": trouble}))


def _abilities(tokenizer: "_Templates") -> Abilities:
    offered = _written(tokenizer, [USER], [TOOL])
    tools = NAME in offered and KEY in offered
    once, twice = ({"role": "assistant", "content": "", "tool_calls": CALLS[:count]} for count in (1, 2))
    result, other_result = ({"role": "tool", "content": text} for text in (RESULT, OTHER_RESULT))
    called = _written(tokenizer, with_call_ids([USER, once, result]), [TOOL])
    call = (called or _written(tokenizer, with_call_ids([USER, once]), [TOOL])).rpartition(ASKED)[2]
    tool_format = next((name for name, pattern in _FORMATS.items() if tools and pattern.search(call)), None)
    both = _written(tokenizer, with_call_ids([USER, twice, result, other_result]), [TOOL])
    template = ChatTemplate(
        system=SYSTEM in _written(tokenizer, [{"role": "system", "content": SYSTEM}, USER]),
        tools=tools,
        results=tools and all(text in both for text in (VALUE, OTHER, RESULT, OTHER_RESULT)),
        thinking="always" if tool_format == "harmony" else _thinking(tokenizer),
    )
    return Abilities(template, tool_format)


def _thinking(tokenizer: "_Templates") -> Literal["switch", "always", "never"]:
    off, on = (rendered_chat(tokenizer, [USER], enable_thinking=thinking) for thinking in (False, True))
    return "switch" if off != on else "always" if off.rstrip().endswith("<think>") else "never"


def _written(tokenizer: "_Templates", messages: Iterable[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> str:
    """The conversation; empty where the template raises."""
    try:
        return rendered_chat(tokenizer, list(messages), tools, enable_thinking=False)
    except TemplateRaisedError:
        return ""


@dataclass(frozen=True)
class _Templates:
    """As much of a tokenizer as rendering needs: a GGUF has none that transformers loads."""

    chat_template: Mapping[str, str]
    special_tokens_map: Mapping[str, str]
    name_or_path: str

    def get_chat_template(self, name: None, tools: Sequence[dict[str, Any]] | None) -> str:
        """The one for conversations with tools where there is one, as transformers chooses."""
        chosen = self.chat_template.get("tool_use") if tools else None
        return chosen or self.chat_template["default"]


def _special_tokens(held: HeldFolder) -> dict[str, str]:
    """Special tokens by name. One that no file names is empty: templates join it to other texts."""
    settings = held.json("tokenizer_config.json") if "tokenizer_config.json" in held else {}
    given = {name: value.get("content") if isinstance(value, dict) else value for name, value in settings.items()}
    named = {name: value for name, value in given.items() if name.endswith("_token") and isinstance(value, str)}
    return dict.fromkeys(("bos_token", "eos_token"), "") | named
