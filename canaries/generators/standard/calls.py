"""Requests for one of a number of offered tools, or for none of them."""

import random
from functools import cache
from pathlib import Path
from typing import Any

from q36eval.canaries.generators.standard.drawing import WORDS, drawn, filled, said, value_of
from q36eval.canaries.generators.tools import call_text
from q36eval.canaries.generators.words import pick
from q36eval.examples import ChatExample
from q36eval.files import canonical_json, read_our_yaml

FEW = 0
"""As a number of offered tools: two to four, drawn."""

LISTS = 3
"""Fixed lists of tools for each larger number: few, so that an engine reads a list once for many requests."""

EXTRA_SHARE = 0.5


@cache
def tools() -> dict[str, dict[str, Any]]:
    """Every tool by name, as `tools.yaml` has it."""
    listed: dict[str, dict[str, Any]] = read_our_yaml(Path(__file__).with_name("tools.yaml"))["tools"]
    return listed


@cache
def schema_of(name: str) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    tool = tools()[name]
    parameters = {"type": "object", "properties": tool["properties"], "required": tool["required"]}
    return {
        "type": "function",
        "function": {"name": name, "description": tool["description"], "parameters": parameters},
    }


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


def requested(rng: random.Random, name: str) -> tuple[str, dict[str, Any]]:
    """A request for that tool, and the arguments it calls for."""
    tool = tools()[name]
    slots = {slot: value_of(rng, kind) for slot, kind in tool["slots"].items()}
    text, arguments = said(pick(rng, tool["requests"]), slots), filled(tool["arguments"], slots)
    for extra in tool.get("extras", ()):
        if rng.random() < EXTRA_SHARE:
            text += said(extra["say"], slots)
            arguments = _merged(arguments, filled(extra["arguments"], slots))
    return text, arguments


def _offer(rng: random.Random, offered: int) -> list[str]:
    """Names of tools, in their order."""
    if offered == FEW:
        return rng.sample(list(tools()), 2 + int(rng.random() * 3))
    return random.Random(f"standard-tools-{offered}-{int(rng.random() * LISTS)}").sample(list(tools()), offered)


def _example(
    kind: str, request: str, what: str, names: list[str], answer: str, expected: dict[str, Any]
) -> ChatExample:
    messages = ({"role": "system", "content": WORDS["tool_calls"]["system"]}, {"role": "user", "content": request})
    return ChatExample(f"{kind}:{what}", messages, answer, tuple(map(schema_of, names)), expected)


def offered_call(rng: random.Random, offered: int = FEW) -> ChatExample:
    """One of `offered` tools fits, at any place among them."""
    names: list[str] = []
    while not (able := [name for name in names if "requests" in tools()[name]]):
        names = _offer(rng, offered)
    name = pick(rng, able)
    request, arguments = requested(rng, name)
    expected = {"name": name, "arguments": arguments, "refusal": WORDS["tool_calls"]["none"]}
    what = f"{name}:{canonical_json(arguments, ascii_only=False)}"
    return _example("offered_call", request, what, names, call_text(name, arguments), expected)


def offered_none(rng: random.Random, offered: int = FEW) -> ChatExample:
    """None of the offered tools fits, so the answer is the sentence that the prompt states."""
    words = WORDS["tool_calls"]
    chore = pick(rng, words["chores"])
    request = said(chore, drawn(rng, chore))
    expected = {"name": None, "arguments": {}, "text": words["none"]}
    return _example("offered_none", request, request, _offer(rng, offered), words["none"], expected)
