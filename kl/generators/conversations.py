"""Conversations from seeded templates of our own: prompts that a reference answers, and whole tool dialogues.

Nothing is copied: the templates lie beside this file. What is drawn from one template shares it, so it is one cluster.
"""

import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from q36eval.files import read_our_yaml

TEMPLATES = Path(__file__).with_suffix(".yaml")

SEED = 20261122
REASONING_DRAWS = 2
TOOL_DRAWS = 2
NEW_TOKENS = {"chat": 256, "tools": 192, "reasoning": 512}
DISTRACTORS = 2
"""Tools beside the one that fits."""

Record = dict[str, Any]


@cache
def templates() -> Record:
    """All templates, read once."""
    record: Record = read_our_yaml(TEMPLATES)
    return record


def prompts(seed: int = SEED) -> Iterator[Record]:
    """Every prompt as a line of `data/prompts/release.jsonl`: chat, tools and reasoning, in several languages.

    Of the tools every second draw already holds a call and its result, so that words are asked for. Of the problems
    every second one is thought about first.
    """
    for language, questions in templates()["chat"].items():
        for number, text in enumerate(questions):
            slots = _slots(random.Random(f"{seed}/chat/{language}/{number}"))
            yield _prompt("chat", f"{language}-{number:02d}", [_user(_filled(text, slots))])
    for language, questions in templates()["reasoning"].items():
        for number, text in enumerate(questions):
            for draw in range(REASONING_DRAWS):
                slots = _slots(random.Random(f"{seed}/reasoning/{language}/{number}/{draw}"))
                messages = [_user(_filled(text, slots))]
                where = f"{language}-{number:02d}"
                yield _prompt("reasoning", where, messages, draw=draw, thinking=draw % 2 == 1)
    for name, language in _tool_templates():
        for draw in range(TOOL_DRAWS):
            rng = random.Random(f"{seed}/tools/{name}/{language}/{draw}")
            messages, tools = _dialogue(name, language, rng)
            shown = messages[:1] if draw % 2 == 0 else messages[:3]
            yield _prompt("tools", f"{language}-{name}", shown, tools=tools, draw=draw)


def dialogues(count: int, seed: int) -> Iterator[tuple[str, list[Record], list[Record]]]:
    """So many whole dialogues: the template's name, messages and tools; template after template in turn."""
    names = list(_tool_templates())
    for number in range(count):
        name, language = names[number % len(names)]
        rng = random.Random(f"{seed}/dialogue/{name}/{language}/{number // len(names)}")
        yield f"{language}-{name}", *_dialogue(name, language, rng)


def _tool_templates() -> Iterator[tuple[str, str]]:
    for name, tool in templates()["tools"].items():
        yield from ((name, language) for language in tool["ask"])


def _prompt(
    kind: str,
    where: str,
    messages: list[Record],
    *,
    tools: list[Record] | None = None,
    draw: int = 0,
    thinking: bool = False,
) -> Record:
    return {
        "id": f"{kind}-{where}-{draw}",
        "kind": kind,
        "cluster": f"{kind}-{where}",
        "messages": messages,
        "tools": tools or [],
        "enable_thinking": thinking,
        "max_new_tokens": NEW_TOKENS[kind],
    }


def _dialogue(name: str, language: str, rng: random.Random) -> tuple[list[Record], list[Record]]:
    """Question, call, result and answer, and the tools that could be called, in an order that is drawn."""
    known = templates()["tools"]
    tool, slots = known[name], _slots(rng)
    slots |= {"parcel": slots["thing"], "article": slots["thing"], "query": slots["subject"], "text": slots["name"]}
    arguments = {key: _typed(slots[key], kind) for key, kind in tool["parameters"].items()}
    result = {key: _result(value, slots) for key, value in tool["result"].items()}
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages = [
        _user(_filled(tool["ask"][language], slots)),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps(result, ensure_ascii=False)},
        {"role": "assistant", "content": _filled(tool["answer"][language], slots)},
    ]
    others = rng.sample(sorted(set(known) - {name}), DISTRACTORS)
    offered = rng.sample([name, *others], DISTRACTORS + 1)
    return messages, [_definition(other, known[other]) for other in offered]


def _definition(name: str, tool: Mapping[str, Any]) -> Record:
    properties: Record = {}
    for key, kind in tool["parameters"].items():
        properties[key] = {"type": "string", "enum": kind.split("|")} if "|" in kind else {"type": kind}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": tool["description"], "parameters": parameters},
    }


def _slots(rng: random.Random) -> dict[str, str]:
    known = templates()
    town, town_to = rng.sample(known["towns"], 2)
    currency_from, currency_to = rng.sample(known["currencies"], 2)
    numbers = {"a": (20, 90), "b": (2, 19), "c": (3, 12), "d": (100, 990), "e": (13, 40), "n": (3, 25), "p": (5, 40)}
    numbers |= {"q": (5, 30), "r": (20, 55), "s": (60, 300), "x": (2, 6), "y": (2, 8), "z": (31, 89)}
    numbers |= {"people": (2, 9), "amount": (20, 900), "degrees": (17, 24), "limit": (3, 20)}
    slots = {key: str(rng.randint(*span)) for key, span in numbers.items()}
    return slots | {
        "town": town,
        "town_to": town_to,
        "currency_from": currency_from,
        "currency_to": currency_to,
        "name": rng.choice(known["names"]),
        "thing": rng.choice(known["things"]),
        "subject": rng.choice(known["subjects"]),
        "room": rng.choice(known["rooms"]),
        "priority": rng.choice(known["priorities"]),
        "date": f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        "time": f"{rng.randint(7, 21)}:{rng.choice(('00', '15', '30', '45'))}",
    }


def _filled(text: str, slots: Mapping[str, str]) -> str:
    return text.format_map(slots)


def _typed(value: str, kind: str) -> Any:
    return int(value) if kind in ("integer", "number") else value


def _result(value: Any, slots: Mapping[str, str]) -> Any:
    """A number where the slot holds one."""
    if not isinstance(value, str):
        return value
    text = _filled(value, slots)
    return int(text) if text.isdecimal() else float(text) if text.replace(".", "", 1).isdecimal() else text


def _user(text: str) -> Record:
    return {"role": "user", "content": text}
