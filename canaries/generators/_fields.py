"""Fields of an object: their types, how their values are drawn and said, and how extraction is asked for."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from q36eval.canaries.generators._names import person
from q36eval.canaries.generators._words import CITIES, code, iso_date, pick

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
    "Vytáhni údaje do JSONu podle schématu. Odpověz jen JSONem bez formátování.",
    "Převeď text na JSON podle schématu. Vrať pouze JSON.",
    "Vyplň JSON podle schématu, nic jiného nepiš.",
)
TASKS_EN = (
    "Extract the data as JSON under the schema. Answer with bare JSON only.",
    "Turn the text into JSON that fits the schema. Return only the JSON.",
    "Fill in JSON under the schema and write nothing else.",
)
_FENCE_IS_LEFT_OPEN = ("Vrať pouze JSON", "Return only the JSON")
OPENINGS_CS = ("Záznam: ", "Zpráva: ", "Formulář: ", "Text: ")
OPENINGS_EN = ("Record: ", "Message: ", "Form: ", "Text: ")


def minified(value: Any) -> str:
    """The answer's fixed form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def expected_json(prompt: str, value: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """What the check of bare JSON is to know: a prompt that wants "only the JSON" does not say that no fence may be."""
    fence = {"fence": True} if any(words in prompt for words in _FENCE_IS_LEFT_OPEN) else {}
    return {"object": value, "schema": schema, **fence}


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """An object of exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def draw_fields(rng: random.Random, fields: tuple[Field, ...], count: int) -> dict[str, tuple[Field, Value]]:
    """`count` of `fields` in random order, each with a value."""
    return {field.name: (field, field.value(rng)) for field in rng.sample(fields, count)}


def clauses_of(rng: random.Random, drawn: dict[str, tuple[Field, Value]], czech: bool) -> list[str]:
    """What says each value, in random order."""
    clauses = [field.czech(value) if czech else field.english(value) for field, value in drawn.values()]
    rng.shuffle(clauses)
    return clauses
