"""Exact copying: dates, identifiers, account numbers, names; hashes and addresses; code whose white space matters."""

import random
from collections.abc import Callable
from typing import NamedTuple

from q36eval.canaries.generators.words import (
    CITIES,
    WORDS,
    code,
    iso_date,
    koruna,
    person,
    pick,
    question,
    spaced,
    words_of,
)
from q36eval.examples import ChatExample

FIELDS_MIN, FIELDS_MAX = 2, 4
"""Fields in one prompt; some or all of them are requested."""

ASKED_MAX = 3


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _account(rng: random.Random) -> str:
    digits = f"{int(rng.random() * 10**16):016d}{int(rng.random() * 10**6):06d}"
    return f"CZ{digits[:2]} " + " ".join(digits[start : start + 4] for start in range(2, 22, 4))


class Labelled(NamedTuple):
    """A labelled value: its label in Czech, the same in the accusative, in English, and its generator."""

    czech: str
    accusative: str
    english: str
    value: Callable[[random.Random], str]


ITEMS = (
    Labelled("datum", "datum", "date", iso_date),
    Labelled("číslo objednávky", "číslo objednávky", "order number", lambda rng: code(rng, digits=6)),
    Labelled("UUID", "UUID", "UUID", _uuid),
    Labelled("číslo účtu", "číslo účtu", "account number", _account),
    Labelled("částka", "částku", "amount", lambda rng: koruna(1 + int(rng.random() * 999_999))),
    Labelled("jméno", "jméno", "name", person),
    Labelled("kontaktní osoba", "kontaktní osobu", "contact", person),
    Labelled("sériové číslo", "sériové číslo", "serial number", lambda rng: f"{rng.getrandbits(40):010X}"),
)


def copy_exact(rng: random.Random) -> ChatExample:
    """One to three of several labelled values, in the requested order."""
    czech = rng.random() < 0.7
    items = rng.sample(ITEMS, FIELDS_MIN + int(rng.random() * (FIELDS_MAX - FIELDS_MIN + 1)))
    values = [item.value(rng) for item in items]
    labels = [item.czech if czech else item.english for item in items]
    called = [item.accusative if czech else item.english for item in items]
    chosen = rng.sample(range(len(items)), 1 + int(rng.random() * min(ASKED_MAX, len(items))))
    shown = ", ".join(f"{label} {value}" for label, value in zip(labels, values, strict=True))
    ask = pick(rng, words_of("copying", czech)["exact"]).format(what=", ".join(called[index] for index in chosen))
    label = "Záznam" if czech else "Record"
    prompt = f"{ask}\n{label}: {shown}." if rng.random() < 0.5 else f"{label}: {shown}.\n{ask}"
    wanted = [values[index] for index in chosen]
    return question(f"copy_exact:{shown}:{chosen}", prompt, "\n".join(wanted), {"lines": wanted})


REFERENCES_MIN, REFERENCES_MAX = 3, 5
CZECH_SHARE = 0.6


def _hexadecimal(digits: int) -> Callable[[random.Random], str]:
    return lambda rng: f"{rng.getrandbits(4 * digits):0{digits}x}"


def _iban(rng: random.Random) -> str:
    """With a right check number (ISO 13616: the rearranged number leaves 1 modulo 97)."""
    account = f"{int(rng.random() * 10**10):010d}{int(rng.random() * 10**10):010d}"
    check = 98 - int(f"{account}123500") % 97  # C is 12, Z is 35
    return f"CZ{check:02d}{account}"


def _url(rng: random.Random) -> str:
    host = pick(rng, ("sklad", "obchod", "archiv", "mapy", "faktury")) + pick(rng, (".example.cz", ".example.com"))
    page = pick(rng, ("detail", "export", "tisk", "Prehled"))
    query = f"id={int(rng.random() * 10**6)}&klic={_hexadecimal(8)(rng)}"
    return f"https://{host}/v{1 + int(rng.random() * 4)}/{page}_{code(rng)}?{query}#cast-{int(rng.random() * 90)}"


def _moment(rng: random.Random) -> str:
    hour, minute, second = int(rng.random() * 24), int(rng.random() * 60), int(rng.random() * 60)
    return f"{iso_date(rng)}T{hour:02d}:{minute:02d}:{second:02d}.{int(rng.random() * 1000):03d}+0{pick(rng, '12')}:00"


def _token(rng: random.Random) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return "".join(pick(rng, letters) for _ in range(24))


def _street(rng: random.Random) -> str:
    street = pick(rng, WORDS["copying"]["streets"])
    zip_code = f"{100 + int(rng.random() * 690)} {int(rng.random() * 100):02d}"
    return f"{street} {1 + int(rng.random() * 2000)}/{1 + int(rng.random() * 60)}, {zip_code} {pick(rng, CITIES)}"


REFERENCES = (
    Labelled("otisk SHA-256", "otisk SHA-256", "SHA-256 hash", _hexadecimal(64)),
    Labelled("otisk commitu", "otisk commitu", "commit hash", _hexadecimal(40)),
    Labelled("IBAN", "IBAN", "IBAN", _iban),
    Labelled("odkaz", "odkaz", "link", _url),
    Labelled("čas", "čas", "time", _moment),
    Labelled(
        "částka",
        "částku",
        "amount",
        lambda rng: f"{spaced(10_000 + int(rng.random() * 9_990_000))},{int(rng.random() * 100):02d} Kč",
    ),
    Labelled(
        "adresa IPv6", "adresu IPv6", "IPv6 address", lambda rng: ":".join(_hexadecimal(4)(rng) for _ in range(8))
    ),
    Labelled("token", "token", "token", _token),
    Labelled("adresa", "adresu", "address", _street),
)


def copy_references(rng: random.Random) -> ChatExample:
    """One to three of several references, in the requested order; one wrong character makes another reference."""
    czech = rng.random() < CZECH_SHARE
    references = rng.sample(REFERENCES, REFERENCES_MIN + int(rng.random() * (REFERENCES_MAX - REFERENCES_MIN + 1)))
    values = [reference.value(rng) for reference in references]
    labels = [reference.czech if czech else reference.english for reference in references]
    called = [reference.accusative if czech else reference.english for reference in references]
    chosen = rng.sample(range(len(values)), 1 + int(rng.random() * ASKED_MAX))
    shown = "\n".join(f"{label}: {value}" for label, value in zip(labels, values, strict=True))
    ask = words_of("copying", czech)["references"].format(what=", ".join(called[index] for index in chosen))
    wanted = [values[index] for index in chosen]
    expected = {"lines": wanted, "formatting": False}
    return question(f"copy_references:{shown}:{chosen}", f"{shown}\n\n{ask}", "\n".join(wanted), expected)


NAMES = ("total", "limit", "count", "price", "offset", "weight", "index", "ratio", "level", "width", "delay", "score")


FILES: dict[str, str] = WORDS["copying"]["files"]
NUMBERS = {"python": 3, "makefile": 2, "yaml": 3}
"""Numbers that are drawn for a file of each language."""


def _file(rng: random.Random, language: str) -> str:
    text, (a, b, c) = FILES[language], rng.sample(NAMES, 3)
    numbers = [1 + int(rng.random() * 900) for _ in range(NUMBERS[language])]
    city = pick(rng, CITIES) if "{city}" in text else ""
    return text.format(*numbers, a=a, b=b, c=c, city=city)


def copy_code(rng: random.Random) -> ChatExample:
    """A short file whose white space is part of it: Python's indentation, a Makefile's tabs, YAML's levels."""
    language = pick(rng, list(FILES))
    text = _file(rng, language)
    fenced = f"```{language}\n{text}\n```"
    ask = words_of("copying", rng.random() < CZECH_SHARE)["code"]
    expected = {"code": text, "fence": True, "one_block": True}
    return question(f"copy_code:{text}", f"{ask}\n\n{fenced}", fenced, expected)
