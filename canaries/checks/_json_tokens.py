"""Where the parts of a JSON text stand: one pass over its tokens, without recursion."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from q36eval.canaries.checks._base import shown

OPENING = "{["
_TOKEN = re.compile(r'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+)', re.DOTALL)

Path = list[str | int]
"""Keys as they are written (in quotes, escapes and all) and indexes, from the outermost."""


class Token(NamedTuple):
    """Characters `text[start:end]`. `path` is where a value or key stands; it changes as reading goes on."""

    kind: Literal["open", "key", "value", "comma", "close"]
    start: int
    end: int
    path: Path


def tokens(text: str, start: int = 0) -> Iterator[Token]:
    """The parts of the JSON value that begins at `text[start]`, colons left out.

    Text that is no JSON ends early or gives parts without sense; nothing is raised.
    """
    path: Path = []
    opened: list[str] = []
    key_next = False
    while match := _TOKEN.match(text, start):
        at, start = match.span(1)
        first = text[at]
        if first in OPENING:
            yield Token("open", at, start, path)
            opened.append(first)
            key_next = first == "{"
            path.append(0)
        elif first in "}]":
            if not opened:
                return
            opened.pop()
            path.pop()
            yield Token("close", at, start, path)
            key_next = False
        elif first == "," and opened:
            yield Token("comma", at, start, path)
            key_next = opened[-1] == "{"
            if isinstance(path[-1], int):
                path[-1] += 1
        elif key_next:
            path[-1] = text[at:start]
            yield Token("key", at, start, path)
            key_next = False
        elif first != ":":
            yield Token("value", at, start, path)
        if not opened:
            return


def step(key: str) -> str:
    """One step of a JSON path into an object."""
    return f".{key}" if len(key) <= 40 and key.isidentifier() else f"[{shown(key)}]"


def path_text(path: Path) -> str:
    """`$.items[2].name`, its last steps only where it is long."""
    last = path[-20:]
    steps = (f"[{part}]" if isinstance(part, int) else step(part[1:-1]) for part in last)
    return ("$" if len(path) == len(last) else "$…") + "".join(steps)
