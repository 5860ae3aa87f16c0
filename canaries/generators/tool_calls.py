"""Requests that call for one of several offered tools, and requests that none of them fits."""

import random
from typing import Any

from q36eval.canaries.generators._tools import TOOLS, Tool, call_text
from q36eval.canaries.generators._words import code, pick
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 2, 4
CZECH_SHARE = 0.65
SYSTEM_SHARE = 0.6
"""Share of fitting requests that carry the system prompt, which every request that no tool fits has."""

CHORES_CS = (
    "Upeč pro {count} hostů dort, na dortu bude jméno {person}.",
    "Zahraj na klavír {count} písní, poslouchat bude {person}.",
    "Vymaluj dílnu číslo {count}, klíče má {person}.",
    "Zasaď na zahradě {count} stromů, pomůže {person}.",
    "Oprav kolo se štítkem {ticket}, vyzvedne si ho {person}.",
    "Ostříhej psa s lístkem {ticket}, přivede ho {person}.",
    "Nakresli {count} koní, obraz dostane {person}.",
    "Umyj auto na místě {count}, klíče má {person}.",
    "Uvař polévku pro {count} lidí, podávat ji bude {person}.",
    "Upleť svetr velikosti {count}, nosit ho bude {person}.",
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

NONE_CS = "S tím nepomohu."
NONE_EN = "I cannot help with that."
"""The refusal says nothing of tools, and is called the normal answer.

Qwen3.5's chat template demands a normal answer, without a word about functions, where none fits; the system prompt
says which one that is.
"""

SYSTEM_CS = f"Když se žádný nástroj nehodí, odpověz normálně, a to přesně touto větou: {NONE_CS}"
SYSTEM_EN = f"When no tool fits, answer normally, with exactly this sentence: {NONE_EN}"
COUNT_MIN = 5
"""From five on, counted things stand in the genitive plural: „5 stromů“, but „4 stromy“."""

POLITE_CS = ("{}", "Mám prosbu. {}", "Ahoj. {}", "{} Děkuji.")
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
    with_system = rng.random() < SYSTEM_SHARE
    refusal = {"refusal": NONE_CS if czech else NONE_EN} if with_system else {}
    return ChatExample(
        key=_key("tool_call", request, offered),
        messages=_messages(rng, request, czech, with_system),
        answer=call_text(chosen.name, arguments),
        tools=tuple(tool.schema for tool in offered),
        expected={"name": chosen.name, "arguments": arguments} | refusal,
    )


def tool_none(rng: random.Random) -> ChatExample:
    """The request is for something that no tool can do, so the answer is the refusal that the system prompt states."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    request = pick(rng, CHORES_CS if czech else CHORES_EN).format(
        person=pick(rng, FIRST_NAMES), count=rng.randint(COUNT_MIN, 99), ticket=code(rng)
    )
    return ChatExample(
        key=_key("tool_none", request, offered),
        messages=_messages(rng, request, czech, True),
        answer=NONE_CS if czech else NONE_EN,
        tools=tuple(tool.schema for tool in offered),
        expected={"name": None, "arguments": {}, "text": NONE_CS if czech else NONE_EN},
    )
