"""Requests that call for one of several offered tools, and requests that none of them fits."""

import random
from typing import Any

from canaries.generators._tools import TOOLS, Tool, call_text
from canaries.generators._words import code, pick
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 2, 4
CZECH_SHARE = 0.65
SYSTEM_SHARE = 0.6
"""Share of fitting requests that carry the system prompt, which every request that no tool fits has."""

CHORES_CS = (
    "Upeč pro {count} hostů dort, na dortu bude jméno {person}.",
    "Zahraj na klavír {count} písní, poslouchá {person}.",
    "Vymaluj dílnu číslo {count}, klíče má {person}.",
    "Zasaď na zahradě {count} stromů, pomáhá {person}.",
    "Oprav kolo, majitel {person}, štítek {ticket}.",
    "Ostříhej psa, přivede ho {person}, lístek {ticket}.",
    "Nakresli obraz {count} koní, dostane ho {person}.",
    "Umyj auto, stojí na místě {count}, majitel {person}.",
    "Uvař polévku pro {count} lidí, podává {person}.",
    "Upleť svetr, velikost {count}, nosit ho bude {person}.",
)
CHORES_EN = (
    "Bake a cake for {count} guests with the name {person} on it.",
    "Play {count} songs on the piano for {person}.",
    "Paint workshop number {count}; {person} has the keys.",
    "Plant {count} trees in the garden with {person}.",
    "Repair the bicycle of {person}, label {ticket}.",
    "Wash the car at place {count}; its owner is {person}.",
    "Knit a sweater of size {count} for {person}.",
)
"""What no tool can do."""

FIRST_NAMES = (
    "Adam",
    "Alena",
    "David",
    "Eva",
    "Filip",
    "Hana",
    "Ivan",
    "Jana",
    "Karel",
    "Lenka",
    "Marek",
    "Olga",
    "Petr",
)
"""The same names in both languages, in the only form both use."""

SYSTEM_CS = "Když se žádný nástroj nehodí, odpověz přesně: Na to nemám nástroj."
SYSTEM_EN = "When no tool fits, answer exactly: I have no tool for that."
NONE_CS = "Na to nemám nástroj."
NONE_EN = "I have no tool for that."
POLITE_CS = ("{}", "Prosím: {}", "Dobrý den. {}", "{} Děkuji.")
POLITE_EN = ("{}", "Please: {}", "Hello. {}", "{} Thanks.")


def _messages(rng: random.Random, request: str, czech: bool, with_system: bool) -> tuple[dict[str, Any], ...]:
    text = pick(rng, POLITE_CS if czech else POLITE_EN).format(request)
    user = {"role": "user", "content": text}
    if not with_system:
        return (user,)
    return {"role": "system", "content": SYSTEM_CS if czech else SYSTEM_EN}, user


def _offer(rng: random.Random) -> list[Tool]:
    return rng.sample(TOOLS, OFFERED_MIN + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1)))


def _key(kind: str, request: str, offered: list[Tool]) -> str:
    return f"{kind}:{request}:{','.join(sorted(tool.name for tool in offered))}"


def tool_call(rng: random.Random) -> ChatExample:
    """One of the offered tools fits; optional arguments are given only when the request names them."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    chosen = pick(rng, offered)
    request, arguments = chosen.request(rng, czech)
    return ChatExample(
        key=_key("tool_call", request, offered),
        messages=_messages(rng, request, czech, rng.random() < SYSTEM_SHARE),
        answer=call_text(chosen.name, arguments),
        tools=tuple(tool.schema for tool in offered),
        expected={"name": chosen.name, "arguments": arguments},
    )


def tool_none(rng: random.Random) -> ChatExample:
    """The request is for something that no tool can do, so the answer is the refusal that the system prompt states."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    request = pick(rng, CHORES_CS if czech else CHORES_EN).format(
        person=pick(rng, FIRST_NAMES), count=rng.randint(2, 99), ticket=code(rng)
    )
    return ChatExample(
        key=_key("tool_none", request, offered),
        messages=_messages(rng, request, czech, True),
        answer=NONE_CS if czech else NONE_EN,
        tools=tuple(tool.schema for tool in offered),
        expected={"name": None, "arguments": {}, "text": NONE_CS if czech else NONE_EN},
    )
