"""Training-only exercises: many short look-ups per document, which teach what long prompts teach too rarely.

None of these is ever tested; they exist so that a small model learns to find a value by its key.
"""

import random

from benchmarks.sandbox.json_documents import ADJECTIVES, THINGS
from q36eval.examples import TextExample

SEVERITIES = (("nízká", "střední", "vysoká", "kritická", "žádná"), ("none", "low", "medium", "high", "critical"))
TOOL_WORDS = (
    "book",
    "order",
    "search",
    "send",
    "create",
    "get",
    "find",
    "cancel",
    "convert",
    "translate",
    "add",
    "track",
)
TOOL_THINGS = (
    "room",
    "status",
    "catalogue",
    "money",
    "invoice",
    "weather",
    "contact",
    "email",
    "table",
    "text",
    "reminder",
)


def _keys(rng: random.Random, count: int) -> list[str]:
    things = rng.sample(THINGS, count)
    return [f"{rng.choice(ADJECTIVES)}-{thing}" for thing in things]


def numbers(rng: random.Random) -> TextExample:
    """Needles without a haystack, every one of them asked for in another order."""
    count = rng.randint(2, 8)
    digits = rng.choice((3, 5, 7))
    pairs = [(key, rng.randrange(10 ** (digits - 1), 10**digits)) for key in _keys(rng, count)]
    given = " ".join(f"One of the special magic numbers for {key} is: {value}." for key, value in pairs)
    rng.shuffle(pairs)
    answer = " ".join(
        f"The special magic number for {key} mentioned in the provided text is {value}." for key, value in pairs
    )
    return TextExample(key=f"numbers|{given}|{answer}", prompt=f"{given}\n", answer=answer)


def codes(rng: random.Random) -> TextExample:
    """Coded items with a severity each; the severities by code, then the codes by severity."""
    scale = list(rng.choice(SEVERITIES))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    items = [
        (f"{rng.choice(letters)}{rng.choice(letters)}-{rng.randrange(1000):03d}", rng.choice(scale))
        for _ in range(rng.randint(3, 7))
    ]
    given = ", ".join(f"{code} ({severity})" for code, severity in items)
    shuffled = rng.sample(items, len(items))
    by_code = "; ".join(f"{code}: {severity}" for code, severity in shuffled)
    rng.shuffle(scale)
    by_severity = "; ".join(
        f"{severity}: {', '.join(code for code, other in items if other == severity) or '-'}" for severity in scale
    )
    return TextExample(key=f"codes|{given}|{by_code}", prompt=f"{given}\n", answer=f"{by_code}\n{by_severity}")


def offered(rng: random.Random) -> TextExample:
    """Which names a list of tools holds and which it does not."""
    names = [f"{word}_{thing}" for word in TOOL_WORDS for thing in TOOL_THINGS]
    chosen = rng.sample(names, 8)
    there, absent = chosen[: rng.randint(2, 5)], chosen[5:]
    given = "\n".join(f'{{"name": "{name}"}}' for name in there)
    verdicts = rng.sample([(name, "yes") for name in there] + [(name, "no") for name in absent], 5)
    answer = "\n".join(f"{name}: {verdict}" for name, verdict in verdicts)
    return TextExample(key=f"offered|{given}|{answer}", prompt=f"<tools>\n{given}\n</tools>\n", answer=answer)


GENERATORS = {"lookup_numbers": numbers, "lookup_codes": codes, "lookup_offered": offered}
