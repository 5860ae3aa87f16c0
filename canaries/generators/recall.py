"""Our own long contexts, and recall from them: a JSON object whose values are far back.

A context is plain narrative without numbers or records. It is one of `DOCUMENTS` fixed texts, so that questions about
the same text share their prefix, and an engine that reuses a prefix reads each text once.
"""

import random
from functools import lru_cache
from typing import Any

from q36eval.canaries.generators.json_objects import (
    FIELDS,
    Field,
    asked_for,
    clauses_of,
    described,
    draw_fields,
    schema_of,
)
from q36eval.canaries.generators.words import WORDS, code, pick, words_of
from q36eval.examples import ChatExample

DOCUMENTS = 16
"""Texts for each language and length."""

_PARTS_CS: list[list[str]] = list(WORDS["recall"]["cs"]["parts"].values())
_PARTS_EN: list[list[str]] = list(WORDS["recall"]["en"]["parts"].values())


def _sentence_cs(rng: random.Random) -> str:
    who, did, thing, place, moment, after = (pick(rng, words) for words in _PARTS_CS)
    forms = (
        f"{who} {did} {place} {thing} a {after}.",
        f"{moment} {did} {who.lower()} {thing}, {after}.",
        f"{moment} {place} {who.lower()} {did} {thing}.",
    )
    return pick(rng, forms)


def _sentence_en(rng: random.Random) -> str:
    who, did, thing, place, after = (pick(rng, words) for words in _PARTS_EN)
    return f"{who} {did} {thing} {place}, and {after}."


@lru_cache(maxsize=256)
def sentences(document: int, characters: int, czech: bool) -> tuple[str, ...]:
    """Sentences of together at least `characters`; a longer text starts with the shorter one."""
    rng = random.Random(f"context-{document}-{czech}")
    written, length = [], 0
    while length < characters:
        written.append(_sentence_cs(rng) if czech else _sentence_en(rng))
        length += len(written[-1]) + 1
    return tuple(written)


def context(rng: random.Random, characters: int, czech: bool) -> str:
    """One of the texts, at least `characters` long."""
    return " ".join(sentences(int(rng.random() * DOCUMENTS), characters, czech))


CZECH_SHARE = 0.5
SHORT_CHARACTERS = 1_000
"""The sandbox's limit; real models use far longer ones."""

RECALLED = tuple(field for field in FIELDS if field.schema["type"] != "boolean")
"""Values that must be looked up: a flag could be guessed."""

FIELDS_MIN, FIELDS_MAX = 3, 4
RECORDED = 5
"""Fields of each of several records; some of them are requested."""

Drawn = dict[str, tuple[Field, Any]]


def recall(rng: random.Random, characters: int = SHORT_CHARACTERS, records: int = 1) -> ChatExample:
    """A record, at least `characters` of other text, and the question.

    With more `records`, they are spread over one of a few fixed texts, each under a code, and the question names the
    code of one in the first half.
    """
    czech = rng.random() < CZECH_SHARE
    return _one_record(rng, characters, czech) if records == 1 else _one_of(rng, characters, records, czech)


def _one_record(rng: random.Random, characters: int, czech: bool) -> ChatExample:
    drawn = draw_fields(rng, RECALLED, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    opening = pick(rng, words_of("json_objects", czech)["openings"])
    record = f"{opening}{', '.join(clauses_of(rng, drawn, czech))}."
    task = pick(rng, words_of("json_objects", czech)["tasks"])
    return _example(f"{record}\n{context(rng, characters, czech)}\n{task}", "recall", drawn, czech)


@lru_cache(maxsize=4 * DOCUMENTS)
def _archive(document: int, characters: int, records: int, czech: bool) -> tuple[str, tuple[tuple[str, Drawn], ...]]:
    """A text with its records spread evenly, and the records under their codes."""
    rng = random.Random(f"archive-{document}-{characters}-{records}-{czech}")
    pieces = list(sentences(document, characters, czech))
    kept: dict[str, Drawn] = {}
    while len(kept) < records:
        kept[code(rng)] = draw_fields(rng, RECALLED, RECORDED)
    step = len(pieces) / records
    word = words_of("recall", czech)["record"]
    for number, (name, drawn) in reversed(list(enumerate(kept.items()))):
        said = f"{word} {name}: {', '.join(clauses_of(rng, drawn, czech))}."
        pieces.insert(round(number * step), f"\n{said}\n")
    return " ".join(pieces), tuple(kept.items())


def _one_of(rng: random.Random, characters: int, records: int, czech: bool) -> ChatExample:
    text, kept = _archive(int(rng.random() * DOCUMENTS), characters, records, czech)
    name, drawn = kept[int(rng.random() * max(1, records // 2))]
    fields = rng.sample(sorted(drawn), FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    ask = words_of("recall", czech)["ask"].format(code=name)
    return _example(f"{text}\n{ask}", f"recall:{name}", {field: drawn[field] for field in fields}, czech)


def _example(text: str, kind: str, drawn: Drawn, czech: bool) -> ChatExample:
    """The question after `text`, with the task at the end."""
    value, schema = {name: value for name, (_, value) in drawn.items()}, schema_of(drawn)
    return asked_for(kind, f"{text}\n{described(schema, czech)}", value, schema)
