"""JSON objects whose values are in the prompt, and values of one record among others in a long text."""

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from q36eval.canaries.generators.recall import sentences
from q36eval.canaries.generators.standard.drawing import KINDS, WORDS, demonstrated
from q36eval.canaries.generators.words import code, pick
from q36eval.examples import ChatExample
from q36eval.files import canonical_json

Object = dict[str, Any]


def _object(kind: str, prompt: str, value: Object, shown: Sequence[tuple[str, Object]] = ()) -> ChatExample:
    """A prompt for "the JSON object only" does not decide whether a fence is allowed."""
    key = f"{kind}:{canonical_json(value, ascii_only=False)}"
    turns = [(text, json.dumps(one, ensure_ascii=False)) for text, one in shown]
    return demonstrated(key, turns, prompt, json.dumps(value, ensure_ascii=False), {"object": value, "fence": True})


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _lines(value: Object) -> str:
    return "\n".join(f"{key}: {_written(each)}".rstrip() for key, each in value.items())


def flat_lines(rng: random.Random) -> ChatExample:
    """Two to four lines of a key and a value, after answered examples with the same keys."""
    words = WORDS["flat"]
    keys = rng.sample(list(words["keys"]), 2 + int(rng.random() * 3))
    other, value = ({key: KINDS[words["keys"][key]](rng) for key in keys} for _ in range(2))
    ask = words["ask"]
    return _object("flat_lines", f"{ask}\n{_lines(value)}", value, [(f"{ask}\n{_lines(other)}", other)])


def plain_pairs(rng: random.Random) -> ChatExample:
    """Three keys with values in JSON notation, and no earlier answer that shows the end of an answer."""
    words = WORDS["flat"]
    value = {key: KINDS[words["keys"][key]](rng) for key in rng.sample(words["plain_keys"], 3)}
    pairs = "\n".join(f"{key} = {json.dumps(each)}" for key, each in value.items())
    return _object("plain_pairs", f"{words['plain_ask']}\n{pairs}", value)


def _order(rng: random.Random, count: int) -> tuple[str, Object]:
    """An order of `count` products in words, and as an object."""
    customer = {"name": KINDS["person"](rng), "city": KINDS["city"](rng)}
    items = [{"name": name, "count": KINDS["quantity"](rng)} for name in rng.sample(WORDS["products"], count)]
    value = {"order_id": code(rng), "customer": customer, "items": items}
    listing = ", ".join(f"{item['count']} x {item['name']}" for item in items)
    text = f"Order {value['order_id']} of {customer['name']}, {customer['city']}: {listing}."
    return f"{WORDS['nested']['ask']}\n{text}", value


def nested_order(rng: random.Random) -> ChatExample:
    """An order: a nested object, and a list of objects; after an answered example."""
    count = 1 + int(rng.random() * 3)
    shown, (prompt, value) = _order(rng, count), _order(rng, count)
    return _object("nested_order", prompt, value, [shown])


def typed_record(rng: random.Random) -> ChatExample:
    """Types that are easily lost: digits that are text, numbers, null, lists; after answered examples."""
    words = WORDS["typed"]
    keys = rng.sample(list(words["keys"]), 3 + int(rng.random() * 2))
    other, value = ({key: KINDS[words["keys"][key][1]](rng) for key in keys} for _ in range(2))
    types = ", ".join(f"{key} ({words['keys'][key][0]})" for key in keys)
    ask = f"{words['ask']} {types}. {words['rule']}"
    return _object("typed_record", f"{ask}\n{_lines(value)}", value, [(f"{ask}\n{_lines(other)}", other)])


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
    pieces = list(sentences(number, characters, False))
    kept: dict[str, dict[str, str]] = {}
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
