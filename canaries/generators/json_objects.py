"""JSON objects under a schema in the prompt: extraction, types that are easily lost, JSON in prose.

Easily lost are numeric strings, null, decimals, escapes and letters beyond ASCII. Bare answers are minified JSON in the
schema's order.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from q36eval.canaries.generators.words import (
    CITIES,
    PRODUCTS,
    PRODUCTS_EN,
    WORDS,
    code,
    iso_date,
    person,
    pick,
    question,
    words_of,
)
from q36eval.examples import ChatExample
from q36eval.files import canonical_json

Value = Any


class Field(NamedTuple):
    """A key of the object: its schema, a draw of its value, and the words of `words.yaml` that say it."""

    name: str
    schema: dict[str, Any]
    value: Callable[[random.Random], Value]
    words: dict[str, Any]

    def said(self, value: Value, czech: bool) -> str:
        """The clause that says a value."""
        language = "cs" if czech else "en"
        if value is None or value == []:
            return str(self.words["without"][language])
        words = self.words[language]
        return str(words[not value] if isinstance(value, bool) else words.format(_written(value, czech)))


def _written(value: Value, czech: bool) -> str:
    if isinstance(value, list):
        return "; ".join(_written(each, czech) for each in value)
    return str(value).replace(".", ",") if czech and isinstance(value, float) else str(value)


def _fields(kind: str, **values: Callable[[random.Random], Value]) -> tuple[Field, ...]:
    listed = WORDS["json_objects"][kind]
    schemas = {name: {key: words[key] for key in ("type", "items") if key in words} for name, words in listed.items()}
    return tuple(Field(name, schemas[name], value, listed[name]) for name, value in values.items())


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _between(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda rng: low + int(rng.random() * (high - low + 1))


FIELDS = _fields(
    "fields",
    name=person,
    city=lambda rng: pick(rng, CITIES),
    age=_between(18, 90),
    order_id=code,
    date=iso_date,
    quantity=_between(1, 99),
    price=_between(50, 9999),
    paid=_flag,
    in_stock=_flag,
    member=_flag,
)
CUSTOMER_FIELDS = FIELDS[:3]
ORDER_FIELDS = FIELDS[3:9]

_FENCE_IS_LEFT_OPEN = ("Vrať pouze JSON", "Return only the JSON")


def minified(value: Any) -> str:
    """The answer's fixed form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """An object of these properties and no others, all of them required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def schema_of(drawn: Mapping[str, tuple[Field, Value]]) -> dict[str, Any]:
    """The schema of an object with these fields."""
    return object_schema({name: field.schema for name, (field, _) in drawn.items()})


def described(schema: dict[str, Any], czech: bool) -> str:
    """The line of a prompt that states the schema."""
    return f"{words_of('json_objects', czech)['schema']}: {minified(schema)}"


def asked_for(kind: str, prompt: str, value: Any, schema: dict[str, Any]) -> ChatExample:
    """A prompt whose answer is that value under that schema, as bare JSON.

    A prompt that wants "only the JSON" leaves open whether the JSON may stand in a fence.
    """
    fence = {"fence": True} if any(words in prompt for words in _FENCE_IS_LEFT_OPEN) else {}
    key = f"{kind}:{canonical_json(value, ascii_only=False)}"
    return question(key, prompt, minified(value), {"object": value, "schema": schema, **fence})


def draw_fields(rng: random.Random, fields: tuple[Field, ...], count: int) -> dict[str, tuple[Field, Value]]:
    """`count` of `fields` in random order, each with a value."""
    return {field.name: (field, field.value(rng)) for field in rng.sample(fields, count)}


def clauses_of(rng: random.Random, drawn: dict[str, tuple[Field, Value]], czech: bool) -> list[str]:
    """What says each value, in random order."""
    clauses = [field.said(value, czech) for field, value in drawn.values()]
    rng.shuffle(clauses)
    return clauses


FIELDS_MIN, FIELDS_MAX = 3, 5
ITEMS_MIN, ITEMS_MAX = 1, 3
CZECH_SHARE = 0.65


def _extraction(
    rng: random.Random, kind: str, text: str, schema: dict[str, Any], value: dict[str, Any], czech: bool
) -> ChatExample:
    words = words_of("json_objects", czech)
    task, opening = pick(rng, words["tasks"]), pick(rng, words["openings"])
    body = f"{opening}{text}."
    line = described(schema, czech)
    prompt = f"{task}\n{line}\n{body}" if rng.random() < 0.6 else f"{body}\n{task}\n{line}"
    return asked_for(kind, prompt, value, schema)


def json_flat(rng: random.Random) -> ChatExample:
    """Strings, integers and booleans in one flat object."""
    czech = rng.random() < CZECH_SHARE
    drawn = draw_fields(rng, FIELDS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    value = {name: value for name, (_, value) in drawn.items()}
    return _extraction(rng, "json_flat", ", ".join(clauses_of(rng, drawn, czech)), schema_of(drawn), value, czech)


def _items(rng: random.Random, czech: bool) -> tuple[list[dict[str, Any]], str]:
    names = rng.sample(PRODUCTS if czech else PRODUCTS_EN, ITEMS_MIN + int(rng.random() * ITEMS_MAX))
    items = [{"name": name, "count": 1 + int(rng.random() * 20)} for name in names]
    said = ", ".join(f"{item['count']}x {item['name']}" for item in items)
    return items, f"položky {said}" if czech else f"items {said}"


def _tags(rng: random.Random, czech: bool) -> tuple[list[str], str]:
    words = ("křehké", "expres", "dárek", "vrácení", "těžké", "novinka") if czech else (
        "fragile", "express", "gift", "return", "heavy", "new")  # fmt: skip
    tags = rng.sample(words, ITEMS_MIN + int(rng.random() * ITEMS_MAX))
    return tags, f"{'štítky' if czech else 'tags'} {', '.join(tags)}"


def json_nested(rng: random.Random) -> ChatExample:
    """A nested object and an array (of strings or of objects) beside flat fields."""
    czech = rng.random() < CZECH_SHARE
    customer = draw_fields(rng, CUSTOMER_FIELDS, 2)
    order = draw_fields(rng, ORDER_FIELDS, 2)
    if rng.random() < 0.5:
        array, said = _items(rng, czech)
        item_schema = object_schema({"name": {"type": "string"}, "count": {"type": "integer"}})
        array_name = "items"
    else:
        array, said = _tags(rng, czech)  # type: ignore[assignment]
        item_schema, array_name = {"type": "string"}, "tags"
    parts: list[tuple[str, dict[str, Any], Any]] = [
        (name, field.schema, value) for name, (field, value) in order.items()
    ]
    parts.append(("customer", schema_of(customer), {name: value for name, (_, value) in customer.items()}))
    parts.append((array_name, {"type": "array", "items": item_schema}, array))
    rng.shuffle(parts)
    sentences = [", ".join(clauses_of(rng, customer, czech)), ", ".join(clauses_of(rng, order, czech)), said]
    rng.shuffle(sentences)
    schema = object_schema({name: part_schema for name, part_schema, _ in parts})
    return _extraction(rng, "json_nested", "; ".join(sentences), schema, {name: v for name, _, v in parts}, czech)


TRAPS_MIN, TRAPS_MAX = 4, 6
PROSE_FIELDS_MIN, PROSE_FIELDS_MAX = 3, 5


def _digits(count: int) -> Callable[[random.Random], str]:
    return lambda rng: "0" + "".join(str(int(rng.random() * 10)) for _ in range(count - 1))


def _decimal(rng: random.Random) -> float:
    """Never whole, so that it reads as a number with a fraction everywhere."""
    return float(f"{int(rng.random() * 90) + 1}.{int(rng.random() * 9) + 1}")


def _maybe(value: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return lambda rng: None if rng.random() < 0.5 else value(rng)


def _foreign(rng: random.Random) -> str:
    first = pick(rng, ("Łukasz", "Åse", "Çağla", "Noël", "Jürgen", "Þóra", "Ștefan", "Íñigo", "Błażej", "Søren"))
    return f"{first} {pick(rng, ('Wójcik', 'Ødegård', 'Yıldız', 'Großmann', 'Ibáñez', 'Þorsson', 'Țurcanu'))}"


TRAPS = _fields(
    "traps",
    zip=_digits(5),
    code=_digits(6),
    version=lambda rng: f"{1 + int(rng.random() * 9)}.{10 * (1 + int(rng.random() * 9))}",
    # texts that a careless writer turns into another type
    password=lambda rng: pick(rng, ("true", "null", "false", "NaN", "1e5", "3.0", "007")),
    weight=_decimal,
    temperature=lambda rng: -1 - int(rng.random() * 40),
    serial=lambda rng: 10**16 + int(rng.random() * 9 * 10**16),
    active=_flag,
    note=_maybe(lambda rng: f"kontakt {person(rng)}"),
    discount=_maybe(lambda rng: int(rng.random() * 6) * 5),
    title=lambda rng: f'{pick(rng, PRODUCTS)} "{pick(rng, CITIES)}" {10 + int(rng.random() * 90)}',
    path=lambda rng: (
        f"C:\\{pick(rng, ('data', 'temp', 'nova', 'users'))}\\{code(rng)}\\{pick(rng, ('report', 'backup'))}.txt"
    ),
    owner=_foreign,
    measured=lambda rng: [_decimal(rng) if rng.random() < 0.5 else int(rng.random() * 200) - 100 for _ in range(3)],
    tracks=lambda rng: [_digits(3)(rng) for _ in range(int(rng.random() * 3) * 2)],
)


def json_types(rng: random.Random) -> ChatExample:
    """Values that must keep their type: codes stay strings, numbers stay numbers, missing values are null."""
    czech = rng.random() < CZECH_SHARE
    drawn = draw_fields(rng, TRAPS, TRAPS_MIN + int(rng.random() * (TRAPS_MAX - TRAPS_MIN + 1)))
    value, schema = {name: value for name, (_, value) in drawn.items()}, schema_of(drawn)
    said = [f"- {clause}" for clause in clauses_of(rng, drawn, czech)]
    head = f"{'Záznam' if czech else 'Record'} {code(rng)}:\n" + "\n".join(said)
    task = f"{pick(rng, words_of('json_objects', czech)['typed_tasks'])}\n{described(schema, czech)}"
    prompt = f"{head}\n\n{task}" if rng.random() < 0.6 else f"{task}\n\n{head}"
    return asked_for("json_types", prompt, value, schema)


PROSE_MAX_CHARACTERS = 4_000


def json_in_prose(rng: random.Random) -> ChatExample:
    """One JSON object between two required sentences, which must not leak into it."""
    czech = rng.random() < CZECH_SHARE
    count = PROSE_FIELDS_MIN + int(rng.random() * (PROSE_FIELDS_MAX - PROSE_FIELDS_MIN + 1))
    drawn = draw_fields(rng, FIELDS, count)
    value: dict[str, Any] = {name: each for name, (_, each) in drawn.items()}
    body = f"{'Zpráva' if czech else 'Message'} {iso_date(rng)}: {', '.join(clauses_of(rng, drawn, czech))}."
    asks = words_of("json_objects", czech)["prose"]
    ask = pick(rng, asks)
    schema = schema_of(drawn)
    before, after = (
        ("Tady jsou údaje ze zprávy.", "Děkuji.") if czech else ("Here is what the message says.", "Thanks.")
    )
    example = asked_for("json_in_prose", f"{body}\n{ask}\n{described(schema, czech)}", value, schema)
    answer = f"{before}\n\n```json\n{example.answer}\n```\n\n{after}"
    expected = {
        **example.expected,
        "prose": {
            "before": 1,
            "after": 1 if czech or ask == asks[1] else None,
            "block": ask == asks[1],
            "thanks": ask == asks[0],
        },
        "stable": {
            "scripts": ["Latin"],
            "min_characters": 1,
            "max_characters": PROSE_MAX_CHARACTERS,
            "language": "cs" if czech else "en",
            "finished": True,
        },
    }
    return replace(example, answer=answer, expected=expected)
