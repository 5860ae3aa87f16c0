"""What the sandbox is trained on: how often each generator is drawn, and how its examples become tokens."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from q36eval.app.sandbox.curriculum import GENERATORS as CURRICULUM
from q36eval.app.sandbox.tokenizer import CHAT_TEMPLATE
from q36eval.canaries.generators import GENERATORS as CHAT_GENERATORS
from q36eval.evals.generators import GENERATORS as TEXT_GENERATORS
from q36eval.examples import ChatExample, Split, TextExample, draw

THINKING_SHARE = 0.08
"""Share of chat examples rendered with thinking switched on, answered after a short fixed thought."""

THOUGHT = "Zadání je jasné, odpovím přímo."
LAST_LINE = "_last_line"
END_OF_TURN = "<|im_end|>"


@dataclass(frozen=True)
class Document:
    """One training document: `prompt` and `answer` as text; the answer carries full loss weight."""

    kind: str
    prompt: str
    answer: str


class Renderer:
    """Renders chat examples through the very template that ships with the tokenizer, without a tokenizer at hand."""

    def __init__(self) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render = render_jinja_template
        self._template = CHAT_TEMPLATE.read_text(encoding="utf-8")

    def prompt(self, example: ChatExample, *, thinking: bool) -> str:
        """The prompt up to and including the generation prompt."""
        rendered, _ = self._render(
            conversations=[list(example.messages)],
            tools=list(example.tools) or None,
            chat_template=self._template,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        return str(rendered[0])


def generator(kind: str) -> Callable[[random.Random], ChatExample | TextExample]:
    """The generator of that name, from either probe's registry; `discount_…_last_line` demands a fixed last line."""
    base = kind.removesuffix(LAST_LINE)
    if base != kind and base in CHAT_GENERATORS:
        return partial(CHAT_GENERATORS[base], last_line="demanded")
    found: Any = CHAT_GENERATORS.get(kind) or TEXT_GENERATORS.get(kind) or CURRICULUM.get(kind)
    if found is None:
        raise KeyError(f"no generator is called {kind!r}; there are {sorted([*CHAT_GENERATORS, *TEXT_GENERATORS])}")
    return found  # type: ignore[no-any-return]


def document(kind: str, rng: random.Random, split: Split, renderer: Renderer) -> Document:
    """Draw one example of `kind` and render it."""
    example: ChatExample | TextExample = draw(generator(kind), rng, split)
    if isinstance(example, TextExample):
        return Document(kind, example.prompt, example.answer)
    thinking = split == "train" and rng.random() < THINKING_SHARE
    prompt = renderer.prompt(example, thinking=thinking)
    answer = f"{THOUGHT}\n</think>\n\n{example.answer}" if thinking else example.answer
    return Document(kind, prompt, answer + END_OF_TURN)
