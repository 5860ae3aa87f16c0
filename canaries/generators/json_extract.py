"""Extraction into JSON under a schema given in the prompt; the answer is bare minified JSON in the schema's order."""

import json
import random
from typing import Any

from q36eval.canaries.generators._fields import (
    CUSTOMER_FIELDS,
    FIELDS,
    OPENINGS_CS,
    OPENINGS_EN,
    ORDER_FIELDS,
    TASKS_CS,
    TASKS_EN,
    clauses_of,
    draw_fields,
    expected_json,
    minified,
    object_schema,
)
from q36eval.canaries.generators._words import PRODUCTS, PRODUCTS_EN, pick
from q36eval.examples import ChatExample

FIELDS_MIN, FIELDS_MAX = 3, 5
ITEMS_MIN, ITEMS_MAX = 1, 3
CZECH_SHARE = 0.65


def _example(
    rng: random.Random, kind: str, text: str, schema: dict[str, Any], value: dict[str, Any], czech: bool
) -> ChatExample:
    task = pick(rng, TASKS_CS if czech else TASKS_EN)
    opening = pick(rng, OPENINGS_CS if czech else OPENINGS_EN)
    body = f"{opening}{text}."
    described = f"{'Schéma' if czech else 'Schema'}: {minified(schema)}"
    prompt = f"{task}\n{described}\n{body}" if rng.random() < 0.6 else f"{body}\n{task}\n{described}"
    return ChatExample(
        key=f"{kind}:{json.dumps(value, ensure_ascii=False, sort_keys=True)}",
        messages=({"role": "user", "content": prompt},),
        answer=minified(value),
        expected=expected_json(prompt, value, schema),
    )


def json_flat(rng: random.Random) -> ChatExample:
    """Strings, integers and booleans in one flat object."""
    czech = rng.random() < CZECH_SHARE
    drawn = draw_fields(rng, FIELDS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    schema = object_schema({name: {"type": field.type} for name, (field, _) in drawn.items()})
    value = {name: value for name, (_, value) in drawn.items()}
    return _example(rng, "json_flat", ", ".join(clauses_of(rng, drawn, czech)), schema, value, czech)


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
    nested = object_schema({name: {"type": field.type} for name, (field, _) in customer.items()})
    if rng.random() < 0.5:
        array, said = _items(rng, czech)
        item_schema = object_schema({"name": {"type": "string"}, "count": {"type": "integer"}})
        array_name = "items"
    else:
        array, said = _tags(rng, czech)  # type: ignore[assignment]
        item_schema, array_name = {"type": "string"}, "tags"
    parts: list[tuple[str, dict[str, Any], Any]] = [
        (name, {"type": field.type}, value) for name, (field, value) in order.items()
    ]
    parts.append(("customer", nested, {name: value for name, (_, value) in customer.items()}))
    parts.append((array_name, {"type": "array", "items": item_schema}, array))
    rng.shuffle(parts)
    sentences = [", ".join(clauses_of(rng, customer, czech)), ", ".join(clauses_of(rng, order, czech)), said]
    rng.shuffle(sentences)
    schema = object_schema({name: part_schema for name, part_schema, _ in parts})
    return _example(rng, "json_nested", "; ".join(sentences), schema, {name: v for name, _, v in parts}, czech)
