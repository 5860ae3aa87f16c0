"""JSON whose types are easily lost (numeric strings, null, decimals, escapes, letters beyond ASCII); JSON in prose."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from q36eval.canaries.generators._fields import FIELDS, clauses_of, draw_fields, expected_json, minified, object_schema
from q36eval.canaries.generators._names import person
from q36eval.canaries.generators._words import CITIES, PRODUCTS, code, iso_date, pick
from q36eval.examples import ChatExample

FIELDS_MIN, FIELDS_MAX = 4, 6
PROSE_FIELDS_MIN, PROSE_FIELDS_MAX = 3, 5
CZECH_SHARE = 0.65

TASKS_CS = (
    "Převeď záznam na JSON podle schématu. Vrať pouze JSON. Co záznam neuvádí, je null.",
    "Vyplň JSON podle schématu, nic jiného nepiš. Neuvedené hodnoty jsou null.",
)
TASKS_EN = (
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
    traps = rng.sample(TRAPS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    value = {trap.name: trap.value(rng) for trap in traps}
    said = [f"- {trap.czech(value[trap.name]) if czech else trap.english(value[trap.name])}" for trap in traps]
    rng.shuffle(said)
    schema = object_schema({trap.name: trap.schema for trap in traps})
    head = f"{'Záznam' if czech else 'Record'} {code(rng)}:\n" + "\n".join(said)
    task = f"{pick(rng, TASKS_CS if czech else TASKS_EN)}\n{'Schéma' if czech else 'Schema'}: {minified(schema)}"
    prompt = f"{head}\n\n{task}" if rng.random() < 0.6 else f"{task}\n\n{head}"
    return _example("json_types", prompt, value, schema)


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
    schema = object_schema({name: {"type": field.type} for name, (field, _) in drawn.items()})
    body = f"{'Zpráva' if czech else 'Message'} {iso_date(rng)}: {', '.join(clauses_of(rng, drawn, czech))}."
    asks = PROSE_CS if czech else PROSE_EN
    ask = pick(rng, asks)
    prompt = f"{body}\n{ask}\n{'Schéma' if czech else 'Schema'}: {minified(schema)}"
    before, after = (
        ("Tady jsou údaje ze zprávy.", "Děkuji.") if czech else ("Here is what the message says.", "Thanks.")
    )
    example = _example("json_in_prose", prompt, value, schema)
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
    return ChatExample(key=example.key, messages=example.messages, answer=answer, expected=expected)


def _example(kind: str, prompt: str, value: dict[str, Any], schema: dict[str, Any]) -> ChatExample:
    return ChatExample(
        key=f"{kind}:{json.dumps(value, ensure_ascii=False, sort_keys=True)}",
        messages=({"role": "user", "content": prompt},),
        answer=minified(value),
        expected=expected_json(prompt, value, schema),
    )
