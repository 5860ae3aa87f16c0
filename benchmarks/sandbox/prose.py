"""Plain text for perplexity and divergence: seeded documents from grammars and lexicons of our own."""

import random
from collections.abc import Callable

from benchmarks.sandbox import json_documents, prose_czech, prose_english
from q36eval.examples import TextExample

PARAGRAPHS: dict[str, Callable[[random.Random], str]] = {
    "czech": prose_czech.paragraph,
    "czech_legal": prose_czech.legal_paragraph,
    "english": prose_english.paragraph,
    "code": prose_english.code_paragraph,
    "mathematics": prose_english.mathematics_paragraph,
    "json": json_documents.json_text,
}
"""One paragraph of each slice."""

SLICES = tuple(PARAGRAPHS)

CHARACTERS_PER_TOKEN = {
    "czech": 2.6,
    "czech_legal": 3.2,
    "english": 3.3,
    "code": 2.4,
    "mathematics": 1.9,
    "json": json_documents.CHARACTERS_PER_TOKEN,
}
"""Rough, for a vocabulary of about a thousand tokens; only lengths depend on it."""


def document(rng: random.Random, slice_name: str, approx_tokens: int) -> TextExample:
    """Paragraphs of one slice up to about `approx_tokens`; the whole text is the `answer`, and its own key."""
    characters = approx_tokens * CHARACTERS_PER_TOKEN[slice_name]
    return json_documents.paragraphs(rng, slice_name, PARAGRAPHS[slice_name], characters)
