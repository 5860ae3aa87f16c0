"""Requests that call for one of several offered tools, and requests that none of them fits."""

import random
from typing import Any

from canaries.generators._tools import TOOLS, Tool, call_text
from canaries.generators._words import pick
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 2, 4
CZECH_SHARE = 0.65
SYSTEM_SHARE = 0.6
"""Share of fitting requests that carry the system prompt, which every request without a fitting tool has."""

NEIGHBOURS = {"add_reminder", "schedule_meeting"}
"""Tools that could stand in for each other, so that neither is offered when the other is missing."""

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
    """The request is for a tool that is not offered, so the answer is the refusal that the system prompt states."""
    czech = rng.random() < CZECH_SHARE
    missing = pick(rng, TOOLS)
    offered = _offer(rng)
    while any(tool.name == missing.name or {tool.name, missing.name} == NEIGHBOURS for tool in offered):
        offered = _offer(rng)
    request, _ = missing.request(rng, czech)
    return ChatExample(
        key=_key("tool_none", request, offered),
        messages=_messages(rng, request, czech, True),
        answer=NONE_CS if czech else NONE_EN,
        tools=tuple(tool.schema for tool in offered),
        expected={"name": None, "arguments": {}, "text": NONE_CS if czech else NONE_EN},
    )
