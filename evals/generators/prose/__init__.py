"""Plain text for perplexity and divergence: seeded documents from grammars and lexicons of our own."""

import random
from collections.abc import Callable

from q36eval.evals.generators.prose import _code, _czech, _english, _json, _legal, _mathematics
from q36eval.examples import TextExample

PARAGRAPHS: dict[str, Callable[[random.Random], str]] = {
    "czech": _czech.paragraph,
    "czech_legal": _legal.paragraph,
    "english": _english.paragraph,
    "code": _code.paragraph,
    "mathematics": _mathematics.paragraph,
    "json": _json.paragraph,
}
"""One paragraph of each slice."""

SLICES = tuple(PARAGRAPHS)

CHARACTERS_PER_TOKEN = {"czech": 2.6, "czech_legal": 3.2, "english": 3.3, "code": 2.4, "mathematics": 1.9, "json": 2.0}
"""Rough, for a vocabulary of about a thousand tokens; only lengths depend on it."""

MAX_PARAGRAPHS = 400


def document(rng: random.Random, slice_name: str, approx_tokens: int) -> TextExample:
    """Paragraphs of one slice up to about `approx_tokens`; the whole text is the `answer`, and its own key."""
    wanted = approx_tokens * CHARACTERS_PER_TOKEN[slice_name]
    paragraphs: list[str] = []
    length = 0
    while length < wanted and len(paragraphs) < MAX_PARAGRAPHS:
        paragraphs.append(PARAGRAPHS[slice_name](rng))
        length += len(paragraphs[-1]) + 2
    text = "\n\n".join(paragraphs)
    return TextExample(key=f"prose|{text}", prompt="", answer=text, expected={"slice": slice_name})
