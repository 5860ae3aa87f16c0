"""JSON objects under a schema in the prompt: extraction, types that are easily lost, JSON in prose.

Easily lost are numeric strings, null, decimals, escapes and letters beyond ASCII. Bare answers are minified JSON in the
schema's order.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from q36eval.canaries.generators.words import CITIES, PRODUCTS, PRODUCTS_EN, code, iso_date, person, pick, question
from q36eval.examples import ChatExample
from q36eval.files import canonical_json

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


def object_schema(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """An object of these properties and no others, all of them required unless `required` names some."""
    wanted = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": wanted, "additionalProperties": False}


def schema_of(drawn: Mapping[str, tuple[Field, Value]]) -> dict[str, Any]:
    """The schema of an object with these fields."""
    return object_schema({name: {"type": field.type} for name, (field, _) in drawn.items()})


def described(schema: dict[str, Any], czech: bool) -> str:
    """The line of a prompt that states the schema."""
    return f"{'Schéma' if czech else 'Schema'}: {minified(schema)}"


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
    clauses = [field.czech(value) if czech else field.english(value) for field, value in drawn.values()]
    rng.shuffle(clauses)
    return clauses


FIELDS_MIN, FIELDS_MAX = 3, 5
ITEMS_MIN, ITEMS_MAX = 1, 3
CZECH_SHARE = 0.65


def _extraction(
    rng: random.Random, kind: str, text: str, schema: dict[str, Any], value: dict[str, Any], czech: bool
) -> ChatExample:
    task = pick(rng, TASKS_CS if czech else TASKS_EN)
    opening = pick(rng, OPENINGS_CS if czech else OPENINGS_EN)
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
        (name, {"type": field.type}, value) for name, (field, value) in order.items()
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

TYPED_TASKS_CS = (
    "Převeď záznam na JSON podle schématu. Vrať pouze JSON. Co záznam neuvádí, je null.",
    "Vyplň JSON podle schématu, nic jiného nepiš. Neuvedené hodnoty jsou null.",
)
TYPED_TASKS_EN = (
    "Turn the record into JSON that fits the schema. Return only the JSON. What the record does not state is null.",
    "Fill in JSON under the schema and write nothing else. Values that are not stated are null.",
)


class Trap(NamedTuple):
    """A key whose value is easily given another type: its schema, a draw, and how it is said in Czech and English."""

    name: str
    schema: dict[str, Any]
    value: Callable[[random.Random], Any]
    czech: Callable[[Any], str]
    english: Callable[[Any], str]


_STRING: dict[str, Any] = {"type": "string"}
_STRINGS: dict[str, Any] = {"type": "array", "items": _STRING}
_MAYBE_STRING: dict[str, Any] = {"type": ["string", "null"]}
_MAYBE_INTEGER: dict[str, Any] = {"type": ["integer", "null"]}


def _digits(count: int) -> Callable[[random.Random], str]:
    return lambda rng: "0" + "".join(str(int(rng.random() * 10)) for _ in range(count - 1))


def _decimal(rng: random.Random) -> float:
    """Never whole, so that it reads as a number with a fraction everywhere."""
    return float(f"{int(rng.random() * 90) + 1}.{int(rng.random() * 9) + 1}")


def _comma(value: float) -> str:
    return str(value).replace(".", ",")


def _maybe(value: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return lambda rng: None if rng.random() < 0.5 else value(rng)


def _quoted(rng: random.Random) -> str:
    return f'{pick(rng, PRODUCTS)} "{pick(rng, CITIES)}" {10 + int(rng.random() * 90)}'


def _path(rng: random.Random) -> str:
    return f"C:\\{pick(rng, ('data', 'temp', 'nova', 'users'))}\\{code(rng)}\\{pick(rng, ('report', 'backup'))}.txt"


def _foreign(rng: random.Random) -> str:
    first = pick(rng, ("Łukasz", "Åse", "Çağla", "Noël", "Jürgen", "Þóra", "Ștefan", "Íñigo", "Błażej", "Søren"))
    return f"{first} {pick(rng, ('Wójcik', 'Ødegård', 'Yıldız', 'Großmann', 'Ibáñez', 'Þorsson', 'Țurcanu'))}"


def _numbers(rng: random.Random) -> list[int | float]:
    return [_decimal(rng) if rng.random() < 0.5 else int(rng.random() * 200) - 100 for _ in range(3)]


def _codes(rng: random.Random) -> list[str]:
    return [_digits(3)(rng) for _ in range(int(rng.random() * 3) * 2)]


def _word(rng: random.Random) -> str:
    """A text that a careless writer turns into another type."""
    return pick(rng, ("true", "null", "false", "NaN", "1e5", "3.0", "007"))


def _plain_list(values: list[Any], none: str) -> str:
    return "; ".join(map(str, values)) if values else none


TRAPS = (
    Trap("zip", _STRING, _digits(5), lambda v: f"PSČ {v}", lambda v: f"zip code {v}"),
    Trap("code", _STRING, _digits(6), lambda v: f"kód {v}", lambda v: f"code {v}"),
    Trap(
        "version", _STRING, lambda rng: f"{1 + int(rng.random() * 9)}.{10 * (1 + int(rng.random() * 9))}",
        lambda v: f"verze {v}", lambda v: f"version {v}",
    ),
    Trap("password", _STRING, _word, lambda v: f"heslo {v}", lambda v: f"password {v}"),
    Trap("weight", {"type": "number"}, _decimal, lambda v: f"hmotnost {_comma(v)} kg", lambda v: f"weight {v} kg"),
    Trap(
        "temperature", {"type": "integer"}, lambda rng: -1 - int(rng.random() * 40),
        lambda v: f"teplota {v} °C", lambda v: f"temperature {v} °C",
    ),
    Trap(
        "serial", {"type": "integer"}, lambda rng: 10**16 + int(rng.random() * 9 * 10**16),
        lambda v: f"sériové číslo {v}", lambda v: f"serial number {v}",
    ),
    Trap("active", {"type": "boolean"}, lambda rng: rng.random() < 0.5,
         lambda v: "účet je aktivní" if v else "účet není aktivní",
         lambda v: "the account is active" if v else "the account is not active"),
    Trap("note", _MAYBE_STRING, _maybe(lambda rng: f"kontakt {person(rng)}"),
         lambda v: f"poznámka: {v}" if v else "bez poznámky", lambda v: f"note: {v}" if v else "no note"),
    Trap("discount", _MAYBE_INTEGER, _maybe(lambda rng: int(rng.random() * 6) * 5),
         lambda v: "sleva neuvedena" if v is None else f"sleva {v} %",
         lambda v: "discount not stated" if v is None else f"discount {v} %"),
    Trap("title", _STRING, _quoted, lambda v: f"název je {v}", lambda v: f"the title is {v}"),
    Trap("path", _STRING, _path, lambda v: f"soubor {v}", lambda v: f"file {v}"),
    Trap("owner", _STRING, _foreign, lambda v: f"vlastník {v}", lambda v: f"owner {v}"),
    Trap(
        "measured", {"type": "array", "items": {"type": "number"}}, _numbers,
        lambda v: f"naměřeno {_plain_list([_comma(each) for each in v], '')}",
        lambda v: f"measured {_plain_list(v, '')}",
    ),
    Trap("tracks", _STRINGS, _codes, lambda v: f"stopy {_plain_list(v, 'žádné')}",
         lambda v: f"tracks {_plain_list(v, 'none')}"),
)  # fmt: skip


def json_types(rng: random.Random) -> ChatExample:
    """Values that must keep their type: codes stay strings, numbers stay numbers, what is not stated is null."""
    czech = rng.random() < CZECH_SHARE
    traps = rng.sample(TRAPS, TRAPS_MIN + int(rng.random() * (TRAPS_MAX - TRAPS_MIN + 1)))
    value = {trap.name: trap.value(rng) for trap in traps}
    said = [f"- {trap.czech(value[trap.name]) if czech else trap.english(value[trap.name])}" for trap in traps]
    rng.shuffle(said)
    schema = object_schema({trap.name: trap.schema for trap in traps})
    head = f"{'Záznam' if czech else 'Record'} {code(rng)}:\n" + "\n".join(said)
    task = f"{pick(rng, TYPED_TASKS_CS if czech else TYPED_TASKS_EN)}\n{described(schema, czech)}"
    prompt = f"{head}\n\n{task}" if rng.random() < 0.6 else f"{task}\n\n{head}"
    return asked_for("json_types", prompt, value, schema)


PROSE_CS = (
    "Nejdřív jednou větou shrň, o co jde. Potom napiš údaje jako JSON podle schématu a nakonec poděkuj jednou větou.",
    "Odpověz zákazníkovi dvěma větami a mezi ně vlož údaje jako JSON podle schématu v bloku kódu.",
)
PROSE_EN = (
    "First sum up in one sentence what this is about. Then write the data as JSON under the schema; end with thanks.",
    "Answer the customer in two sentences, with the data between them as JSON under the schema in a code block.",
)


PROSE_MAX_CHARACTERS = 4_000


def json_in_prose(rng: random.Random) -> ChatExample:
    """One JSON object between two sentences, which must be there and must not leak into it."""
    czech = rng.random() < CZECH_SHARE
    count = PROSE_FIELDS_MIN + int(rng.random() * (PROSE_FIELDS_MAX - PROSE_FIELDS_MIN + 1))
    drawn = draw_fields(rng, FIELDS, count)
    value: dict[str, Any] = {name: each for name, (_, each) in drawn.items()}
    body = f"{'Zpráva' if czech else 'Message'} {iso_date(rng)}: {', '.join(clauses_of(rng, drawn, czech))}."
    asks = PROSE_CS if czech else PROSE_EN
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
            "after": None if ask == PROSE_EN[0] else 1,
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
