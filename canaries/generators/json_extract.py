"""Extraction into JSON under a schema given in the prompt; the answer is bare minified JSON in the schema's order."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from canaries.generators._words import CITIES, PRODUCTS, PRODUCTS_EN, code, iso_date, person, pick
from q36eval.examples import ChatExample

FIELDS_MIN, FIELDS_MAX = 3, 5
ITEMS_MIN, ITEMS_MAX = 1, 3
CZECH_SHARE = 0.65

Value = Any


class Field(NamedTuple):
    """A key of the object: its JSON type, a draw of its value, and the clause that says it in each language."""

    name: str
    type: str
    value: Callable[[random.Random], Value]
    czech: Callable[[Value], str]
    english: Callable[[Value], str]


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _between(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda rng: low + int(rng.random() * (high - low + 1))


FIELDS = (
    Field("name", "string", person, lambda v: f"jméno {v}", lambda v: f"name {v}"),
    Field("city", "string", lambda rng: pick(rng, CITIES), lambda v: f"město {v}", lambda v: f"city {v}"),
    Field("age", "integer", _between(18, 90), lambda v: f"věk {v} let", lambda v: f"aged {v}"),
    Field("order_id", "string", code, lambda v: f"objednávka {v}", lambda v: f"order {v}"),
    Field("date", "string", iso_date, lambda v: f"datum {v}", lambda v: f"dated {v}"),
    Field("quantity", "integer", _between(1, 99), lambda v: f"počet {v} ks", lambda v: f"{v} pieces"),
    Field("price", "integer", _between(50, 9999), lambda v: f"cena {v} Kč", lambda v: f"price {v} CZK"),
    Field(
        "paid", "boolean", _flag, lambda v: "zaplaceno" if v else "zatím nezaplaceno",
        lambda v: "already paid" if v else "not paid yet",
    ),
    Field(
        "in_stock", "boolean", _flag, lambda v: "zboží je skladem" if v else "zboží není skladem",
        lambda v: "in stock" if v else "out of stock",
    ),
    Field(
        "member", "boolean", _flag, lambda v: "je členem klubu" if v else "není členem klubu",
        lambda v: "a club member" if v else "not a club member",
    ),
)  # fmt: skip
CUSTOMER_FIELDS = FIELDS[:3]
ORDER_FIELDS = FIELDS[3:9]

TASKS_CS = (
    "Vytáhni údaje do JSON podle schématu. Odpověz jen JSONem bez formátování.",
    "Převeď text na JSON podle schématu. Vrať pouze JSON.",
    "Vyplň JSON podle schématu, nic jiného nepiš.",
)
TASKS_EN = (
    "Extract the data as JSON under the schema. Answer with bare JSON only.",
    "Turn the text into JSON that fits the schema. Return only the JSON.",
    "Fill in JSON under the schema and write nothing else.",
)
OPENINGS_CS = ("Záznam: ", "Zpráva: ", "Zákazník píše: ", "Text: ")
OPENINGS_EN = ("Record: ", "Message: ", "The customer writes: ", "Text: ")


def minified(value: Any) -> str:
    """The answer's fixed form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _draw(rng: random.Random, fields: tuple[Field, ...], count: int) -> dict[str, tuple[Field, Value]]:
    return {field.name: (field, field.value(rng)) for field in rng.sample(fields, count)}


def _clauses(rng: random.Random, drawn: dict[str, tuple[Field, Value]], czech: bool) -> list[str]:
    clauses = [field.czech(value) if czech else field.english(value) for field, value in drawn.values()]
    rng.shuffle(clauses)
    return clauses


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
        expected={"object": value, "schema": schema},
    )


def json_flat(rng: random.Random) -> ChatExample:
    """Strings, integers and booleans in one flat object."""
    czech = rng.random() < CZECH_SHARE
    drawn = _draw(rng, FIELDS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    schema = _object_schema({name: {"type": field.type} for name, (field, _) in drawn.items()})
    value = {name: value for name, (_, value) in drawn.items()}
    return _example(rng, "json_flat", ", ".join(_clauses(rng, drawn, czech)), schema, value, czech)


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
    customer = _draw(rng, CUSTOMER_FIELDS, 2)
    order = _draw(rng, ORDER_FIELDS, 2)
    nested = _object_schema({name: {"type": field.type} for name, (field, _) in customer.items()})
    if rng.random() < 0.5:
        array, said = _items(rng, czech)
        item_schema = _object_schema({"name": {"type": "string"}, "count": {"type": "integer"}})
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
    sentences = [", ".join(_clauses(rng, customer, czech)), ", ".join(_clauses(rng, order, czech)), said]
    rng.shuffle(sentences)
    schema = _object_schema({name: part_schema for name, part_schema, _ in parts})
    return _example(rng, "json_nested", "; ".join(sentences), schema, {name: v for name, _, v in parts}, czech)
