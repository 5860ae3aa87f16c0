"""JSON objects whose values stand in the prompt, and values of one record among others in a long text."""

import json
import random
from functools import lru_cache
from typing import Any

from q36eval.canaries.generators.recall import sentences
from q36eval.canaries.generators.standard.drawing import KINDS, WORDS
from q36eval.canaries.generators.words import code, pick, question
from q36eval.examples import ChatExample
from q36eval.files import canonical_json


def _object(kind: str, prompt: str, value: dict[str, Any]) -> ChatExample:
    """A prompt that wants "the JSON object only" leaves open whether it may stand in a fence."""
    key = f"{kind}:{canonical_json(value, ascii_only=False)}"
    return question(key, prompt, json.dumps(value, ensure_ascii=False), {"object": value, "fence": True})


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _lines(value: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {_written(each)}".rstrip() for key, each in value.items())


def flat_lines(rng: random.Random) -> ChatExample:
    """Three to five lines of a key and a value."""
    words = WORDS["flat"]
    keys = rng.sample(list(words["keys"]), 3 + int(rng.random() * 3))
    value = {key: KINDS[words["keys"][key]](rng) for key in keys}
    return _object("flat_lines", f"{words['ask']}\n{_lines(value)}", value)


def nested_order(rng: random.Random) -> ChatExample:
    """An order: an object within, and a list of objects."""
    names = rng.sample(WORDS["products"], 1 + int(rng.random() * 3))
    customer = {"name": KINDS["person"](rng), "city": KINDS["city"](rng)}
    items = [{"name": name, "count": KINDS["quantity"](rng)} for name in names]
    value = {"order_id": code(rng), "customer": customer, "items": items}
    listing = ", ".join(f"{item['count']} x {item['name']}" for item in items)
    text = f"Order {value['order_id']} of {customer['name']}, {customer['city']}: {listing}."
    return _object("nested_order", f"{WORDS['nested']['ask']}\n{text}", value)


def typed_record(rng: random.Random) -> ChatExample:
    """Values that easily get another type: digits that are text, numbers, null, lists."""
    words = WORDS["typed"]
    keys = rng.sample(list(words["keys"]), 4 + int(rng.random() * 2))
    value = {key: KINDS[words["keys"][key][1]](rng) for key in keys}
    types = ", ".join(f"{key} ({words['keys'][key][0]})" for key in keys)
    return _object("typed_record", f"{words['ask']} {types}. {words['rule']}\n{_lines(value)}", value)


TEXTS, RECORDS = 2, 12
"""Fixed texts for each length, and the records in each: few, so that an engine reads a text once for many questions."""

ASKED = RECORDS * 3 // 4
"""The first of the records, which have text after them."""

CHARACTERS = 1_000
"""Of text between the records: with them and the question about 1,200 tokens, which fit a context of 2,048."""


@lru_cache(maxsize=4 * TEXTS)
def _archive(number: int, characters: int) -> tuple[str, dict[str, dict[str, str]]]:
    """A text with records spread evenly, and the records by their codes; no two share a code or a date."""
    rng = random.Random(f"standard-archive-{number}-{characters}")
    fields = WORDS["recall"]["fields"]
    pieces, kept = list(sentences(number, characters, False)), {}
    while len(kept) < RECORDS:
        kept[code(rng)] = {name: KINDS[kind](rng) for name, (_, kind) in fields.items()}
    step = len(pieces) / RECORDS
    for at, (name, record) in reversed(list(enumerate(kept.items()))):
        clauses = ", ".join(fields[field][0].format(value) for field, value in record.items())
        pieces.insert(round(at * step), "\n" + WORDS["recall"]["record"].format(code=name, fields=clauses) + "\n")
    return " ".join(pieces).strip(), kept


def recalled_values(rng: random.Random, characters: int = CHARACTERS) -> ChatExample:
    """Two or three values of one record, in a text that holds others."""
    text, kept = _archive(int(rng.random() * TEXTS), characters)
    name = pick(rng, list(kept)[:ASKED])
    fields = rng.sample(list(WORDS["recall"]["fields"]), 2 + int(rng.random() * 2))
    ask = WORDS["recall"]["ask"].format(code=name, fields=", ".join(fields))
    kind = f"recalled_values:{name}:{','.join(fields)}"
    return _object(kind, f"{text}\n\n{ask}", {field: kept[name][field] for field in fields})
