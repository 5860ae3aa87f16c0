"""Exact copying of dates, identifiers, UUIDs, account numbers, amounts and Czech names."""

import random
from collections.abc import Callable
from typing import NamedTuple

from q36eval.canaries.generators._names import person
from q36eval.canaries.generators._words import code, iso_date, koruna, pick
from q36eval.examples import ChatExample

FIELDS_MIN, FIELDS_MAX = 2, 4
"""Fields shown in one prompt; some or all of them are asked for."""

ASKED_MAX = 3


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _account(rng: random.Random) -> str:
    digits = f"{int(rng.random() * 10**16):016d}{int(rng.random() * 10**6):06d}"
    return f"CZ{digits[:2]} " + " ".join(digits[start : start + 4] for start in range(2, 22, 4))


class Item(NamedTuple):
    """A labelled value: its label in Czech, the same in the accusative, in English, and how the value is drawn."""

    czech: str
    accusative: str
    english: str
    value: Callable[[random.Random], str]


ITEMS = (
    Item("datum", "datum", "date", iso_date),
    Item("číslo objednávky", "číslo objednávky", "order number", lambda rng: code(rng, digits=6)),
    Item("UUID", "UUID", "UUID", _uuid),
    Item("číslo účtu", "číslo účtu", "account number", _account),
    Item("částka", "částku", "amount", lambda rng: koruna(1 + int(rng.random() * 999_999))),
    Item("jméno", "jméno", "name", person),
    Item("kontaktní osoba", "kontaktní osobu", "contact", person),
    Item("sériové číslo", "sériové číslo", "serial number", lambda rng: f"{rng.getrandbits(40):010X}"),
)
ASK_CS = (
    "Přepiš přesně: {what}. Každou hodnotu na zvláštní řádek, nic jiného nepiš.",
    "Opiš z textu {what}. Jen hodnoty, každou na vlastní řádek.",
    "Vypiš beze změny {what}, jednu hodnotu na řádek.",
)
ASK_EN = (
    "Copy exactly: {what}. One value per line and nothing else.",
    "Write out unchanged: {what}. Only the values, one per line.",
)


def copy_exact(rng: random.Random) -> ChatExample:
    """One to three of several labelled values, in the order asked."""
    czech = rng.random() < 0.7
    items = rng.sample(ITEMS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    values = [item.value(rng) for item in items]
    labels = [item.czech if czech else item.english for item in items]
    called = [item.accusative if czech else item.english for item in items]
    asked = rng.sample(range(len(items)), 1 + int(rng.random() * min(ASKED_MAX, len(items))))
    shown = ", ".join(f"{label} {value}" for label, value in zip(labels, values, strict=True))
    ask = pick(rng, ASK_CS if czech else ASK_EN).format(what=", ".join(called[index] for index in asked))
    label = "Záznam" if czech else "Record"
    prompt = f"{ask}\n{label}: {shown}." if rng.random() < 0.5 else f"{label}: {shown}.\n{ask}"
    wanted = [values[index] for index in asked]
    return ChatExample(
        key=f"copy_exact:{shown}:{asked}",
        messages=({"role": "user", "content": prompt},),
        answer="\n".join(wanted),
        expected={"lines": wanted},
    )
