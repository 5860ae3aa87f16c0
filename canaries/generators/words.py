"""Words of `words.yaml`, number formats, and Czech names of people and towns with their grammatical forms."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from q36eval.examples import ChatExample
from q36eval.files import read_our_yaml

T = TypeVar("T")

WORDS: dict[str, Any] = read_our_yaml(Path(__file__).with_name("words.yaml"))
"""The texts of prompts and answers, by module."""

CITIES: list[str] = WORDS["cities"]
PRODUCTS: list[str] = WORDS["products"]["cs"]
PRODUCTS_EN: list[str] = WORDS["products"]["en"]


def words_of(part: str, czech: bool) -> dict[str, Any]:
    """The words of a module in Czech or English."""
    words: dict[str, Any] = WORDS[part]["cs" if czech else "en"]
    return words


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of `options`, uniformly; about three times as fast as `rng.choice`."""
    return options[int(rng.random() * len(options))]


def question(key: str, prompt: str, answer: str, expected: dict[str, Any]) -> ChatExample:
    """A conversation of one message: the prompt."""
    return ChatExample(key=key, messages=({"role": "user", "content": prompt},), answer=answer, expected=expected)


def step_number(rng: random.Random, low: int, high: int, step: int) -> int:
    """A multiple of `step` in [low, high] (`low` itself must be one)."""
    return low + step * int(rng.random() * ((high - low) // step + 1))


def iso_date(rng: random.Random) -> str:
    """A date in 2019–2029 as YYYY-MM-DD; days stop at 28 so that every month has them."""
    return f"{2019 + int(rng.random() * 11)}-{1 + int(rng.random() * 12):02d}-{1 + int(rng.random() * 28):02d}"


def code(rng: random.Random, digits: int = 4) -> str:
    """An identifier such as `QX-4071`."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    number = int(rng.random() * 10**digits)
    return f"{pick(rng, letters)}{pick(rng, letters)}-{number:0{digits}d}"


def spaced(number: int) -> str:
    """Thousands apart by a plain space, the way Czech is typed: 2 450."""
    return f"{number:,}".replace(",", " ")


def koruna(number: int) -> str:
    """An amount of money: 2 450 Kč."""
    return f"{spaced(number)} Kč"


class Name(NamedTuple):
    """A name in the nominative, the genitive (whose?) and the dative (to whom?)."""

    nominative: str
    genitive: str
    dative: str


class Town(NamedTuple):
    """A town in the nominative and the genitive, and with the prepositions that say from where and in which place."""

    nominative: str
    genitive: str
    origin: str
    place: str


def _names(kind: str) -> tuple[Name, ...]:
    return tuple(Name(nominative, *forms) for nominative, forms in WORDS[kind].items())


FIRST_NAMES_F, FIRST_NAMES_M = _names("first_names_f"), _names("first_names_m")
SURNAMES_F, SURNAMES_M = _names("surnames_f"), _names("surnames_m")
TOWNS = tuple(Town(nominative, *forms) for nominative, forms in WORDS["towns"].items())
_SMALLER = tuple(Town(nominative, *forms) for nominative, forms in WORDS["smaller_towns"].items())
TOWN_OF = {town.nominative: town for town in (*TOWNS, *_SMALLER)}
"""Every town that any prompt names, by its nominative."""


class Person(NamedTuple):
    """First name and surname, declined together."""

    name: Name
    woman: bool


def declined_person(rng: random.Random) -> Person:
    """A first name with a surname that agrees with it, in every form."""
    woman = rng.random() < 0.5
    first = pick(rng, FIRST_NAMES_F if woman else FIRST_NAMES_M)
    last = pick(rng, SURNAMES_F if woman else SURNAMES_M)
    return Person(Name(*(f"{one} {other}" for one, other in zip(first, last, strict=True))), woman)


def person(rng: random.Random) -> str:
    """First name and surname in the nominative."""
    return declined_person(rng).name.nominative
