"""Values of slots, and texts and arguments with `{slots}`."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from q36eval.canaries.generators.words import code, pick, question, step_number
from q36eval.examples import ChatExample
from q36eval.files import read_our_yaml

WORDS: dict[str, Any] = read_our_yaml(Path(__file__).with_name("words.yaml"))

_SLOT = re.compile(r"\{(\w+)\}")
_FIRST_DAY, _DAYS = date(2026, 1, 1), 700


class Drawn(NamedTuple):
    """A slot's words in a text, and the value that they mean."""

    said: str
    value: Any


Slots = dict[str, Drawn]


def person(rng: random.Random) -> str:
    """First name and surname."""
    return f"{pick(rng, WORDS['first_names'])} {pick(rng, WORDS['surnames'])}"


def _date(rng: random.Random, first: date = _FIRST_DAY, days: int = _DAYS) -> str:
    return (first + timedelta(days=int(rng.random() * days))).isoformat()


def _email(rng: random.Random) -> str:
    name = person(rng).lower().replace(" ", ".")
    return f"{name}{10 + int(rng.random() * 90)}@example.{pick(rng, ('com', 'org', 'net'))}"


def _digits(count: int) -> Callable[[random.Random], str]:
    return lambda rng: str(1 + int(rng.random() * 9)) + "".join(str(int(rng.random() * 10)) for _ in range(count - 1))


def _maybe(kind: Callable[[random.Random], Any], absent: Any) -> Callable[[random.Random], Any]:
    return lambda rng: kind(rng) if rng.random() < 0.6 else absent


def _decimal(rng: random.Random) -> float:
    return float(f"{1 + int(rng.random() * 90)}.{1 + int(rng.random() * 9)}")


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "person": person,
    "city": lambda rng: pick(rng, WORDS["cities"]),
    "street": lambda rng: f"{1 + int(rng.random() * 99)} {pick(rng, WORDS['streets'])}",
    "product": lambda rng: pick(rng, WORDS["products"]),
    "weekday": lambda rng: pick(rng, WORDS["weekdays"]),
    "things": lambda rng: pick(rng, WORDS["short"]["things"]),
    "date": _date,
    "later_date": lambda rng: _date(rng, _FIRST_DAY + timedelta(days=_DAYS)),
    "birth_date": lambda rng: _date(rng, date(1940, 1, 1), 25_000),
    "time": lambda rng: f"{10 + int(rng.random() * 10)}:{5 * int(rng.random() * 12):02d}",
    "code": code,
    "digits": _digits(10),
    "email": _email,
    "phone": lambda rng: f"555-{_digits(4)(rng)}",
    "iban": lambda rng: "DE" + _digits(20)(rng),
    "hash": lambda rng: f"{rng.getrandbits(40):010x}",
    "version": lambda rng: f"{1 + int(rng.random() * 9)}.{10 * (1 + int(rng.random() * 9))}",
    "zip": lambda rng: "0" + _digits(4)(rng),
    "number": lambda rng: step_number(rng, 101, 899, 1),
    "room": lambda rng: f"{pick(rng, 'ABC')}{100 + int(rng.random() * 400)}",
    "quantity": lambda rng: step_number(rng, 11, 98, 1),
    "price": lambda rng: step_number(rng, 110, 990, 10),
    "age": lambda rng: step_number(rng, 18, 90, 1),
    "flag": lambda rng: rng.random() < 0.5,
    "negative": lambda rng: -1 - int(rng.random() * 40),
    "decimal": _decimal,
    "note": _maybe(lambda rng: f"call {person(rng)}", None),
    "discount": _maybe(lambda rng: step_number(rng, 5, 40, 5), None),
    "tags": _maybe(lambda rng: rng.sample(WORDS["products"], 1 + int(rng.random() * 3)), []),
    "readings": lambda rng: [_decimal(rng) for _ in range(2 + int(rng.random() * 2))],
}
"""How a value of each kind is drawn."""


def value_of(rng: random.Random, slot: Any) -> Drawn:
    """A slot as it is written in YAML: a kind, a list, `{from, to, step}`, or a mapping of words to values."""
    if isinstance(slot, list):
        value: Any = pick(rng, slot)
    elif isinstance(slot, Mapping) and "from" in slot:
        value = step_number(rng, slot["from"], slot["to"], slot["step"])
        value = str(value) if slot.get("text") else value
    elif isinstance(slot, Mapping):
        said = pick(rng, list(slot))
        return Drawn(said, slot[said])
    else:
        value = KINDS[slot](rng)
    return Drawn(str(value), value)


def drawn(rng: random.Random, text: str) -> Slots:
    """A value for every slot of a text, each of the kind that it is named after: `city`, and `city2` for another."""
    named = {name: name.rstrip("2") for name in dict.fromkeys(_SLOT.findall(text))}
    return {name: value_of(rng, kind) for name, kind in named.items() if kind in KINDS}


def filled(template: Any, slots: Slots) -> Any:
    """A template with its slots' values; a string that is one slot becomes the value itself, with its type."""
    if isinstance(template, Mapping):
        return {key: filled(inner, slots) for key, inner in template.items()}
    if isinstance(template, list):
        return [filled(inner, slots) for inner in template]
    whole = _SLOT.fullmatch(template) if isinstance(template, str) else None
    return template if whole is None else slots[whole.group(1)].value


def said(text: str, slots: Slots) -> str:
    """A text with its slots' words."""
    return text.format(**{name: one.said for name, one in slots.items()})


def demonstrated(
    key: str, shown: Sequence[tuple[str, str]], prompt: str, answer: str, expected: dict[str, Any]
) -> ChatExample:
    """A question after others that were answered, which show the form of an answer."""
    example = question(key, prompt, answer, expected)
    turns = [
        {"role": role, "content": text}
        for pair in shown
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return ChatExample(key, (*turns, *example.messages), answer, (), expected)
