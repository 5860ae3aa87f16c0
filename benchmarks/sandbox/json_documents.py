"""JSON documents from seeds: orders, people and settings."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from q36eval.examples import TextExample
from q36eval.files import read_our_yaml

_WORDS: dict[str, list[str]] = read_our_yaml(Path(__file__).with_suffix(".yaml"))
MEN = _WORDS["men"]
WOMEN = _WORDS["women"]
ADJECTIVES = _WORDS["adjectives"]
THINGS = _WORDS["things"]
TOWNS = _WORDS["towns"]
STATES = _WORDS["states"]
SERVICES = _WORDS["services"]

MAX_PARAGRAPHS = 400
CHARACTERS_PER_TOKEN = 2.0
"""Rough, for a vocabulary of about a thousand tokens; only lengths depend on it."""


def _date(rng: random.Random) -> str:
    return f"{rng.randint(2015, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _order(rng: random.Random) -> dict[str, object]:
    items = [
        {
            "name": f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}",
            "quantity": rng.randint(1, 9),
            "price": rng.randint(1, 99) * 10,
        }
        for _ in range(rng.randint(1, 3))
    ]
    return {
        "order": rng.randint(1000, 9999),
        "date": _date(rng),
        "customer": f"{rng.choice(MEN + WOMEN)}",
        "items": items,
        "state": rng.choice(STATES),
        "paid": rng.random() < 0.5,
    }


def _person(rng: random.Random) -> dict[str, object]:
    name, town = rng.choice(MEN + WOMEN), rng.choice(TOWNS)
    return {
        "id": rng.randint(1, 999),
        "name": name,
        "age": rng.randint(18, 90),
        "address": {
            "town": town,
            "number": rng.randint(1, 300),
            "zip": f"{rng.randint(100, 799)} {rng.randint(10, 99)}",
        },
        "active": rng.random() < 0.5,
        "tags": rng.sample(ADJECTIVES, rng.randint(0, 3)),
    }


def _settings(rng: random.Random) -> dict[str, object]:
    return {
        "service": rng.choice(SERVICES),
        "port": rng.randint(1024, 9999),
        "retries": rng.randint(0, 9),
        "timeout_s": rng.choice((1, 2.5, 5, 10, 30)),
        "debug": rng.random() < 0.5,
        "hosts": [f"{rng.choice(SERVICES)}-{rng.randint(1, 9)}" for _ in range(rng.randint(1, 3))],
        "parent": rng.choice((None, *SERVICES)),
    }


def json_text(rng: random.Random) -> str:
    """One JSON value, indented or on one line."""
    value = rng.choice((_order, _person, _settings))(rng)
    return json.dumps(value, ensure_ascii=False, indent=rng.choice((2, 2, None)))


def paragraphs(
    rng: random.Random, slice_name: str, paragraph: Callable[[random.Random], str], characters: float
) -> TextExample:
    """Paragraphs up to about so many characters; the whole text is the `answer`, and its own key."""
    drawn: list[str] = []
    length = 0
    while length < characters and len(drawn) < MAX_PARAGRAPHS:
        drawn.append(paragraph(rng))
        length += len(drawn[-1]) + 2
    text = "\n\n".join(drawn)
    return TextExample(key=f"prose|{text}", prompt="", answer=text, expected={"slice": slice_name})
