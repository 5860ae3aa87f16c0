"""What writers put around a value without changing it: quotes, emphasis, a full stop."""

import re

from q36eval.canaries.checks._prose import Piece

_QUOTES = (
    ("„", "“"), ("„", "”"), ("“", "”"), ("‚", "‘"), ("‘", "’"), ("»", "«"), ("«", "»"), ('"', '"'), ("'", "'"),
)  # fmt: skip
_EMPHASIS = (
    *((mark, mark) for mark in ("***", "**", "*", "__", "_", "``", "`")),
    *((f"<{tag}>", f"</{tag}>") for tag in ("b", "strong", "i", "em", "u", "code", "mark")),
)
_LAYOUT = re.compile(
    r"\s*(?:[-*•–—+][ \t]+|#{1,6}[ \t]+|>[ \t]*|\\boxed\{(?:\\text\{)?|\$+(?:\\boxed\{)?(?:\\text\{)?|```\w*\n)"
)
_LAYOUT_END = re.compile(r"[}$`\s]*\Z")
_MAX_DEPTH = 6


def value_within(text: str, start: int = 0, end: int | None = None) -> Piece:
    """Where in `text[start:end]` the value stands: without white space, pairs of quotes or emphasis, one full stop."""
    end = len(text) if end is None else end
    stopped = False
    for _ in range(_MAX_DEPTH):
        start, end = _trimmed(text, start, end)
        if not stopped and end - start > 1 and text[end - 1] == "." and text[end - 2] != ".":
            end, stopped = end - 1, True
            continue
        pair = next((pair for pair in (*_EMPHASIS, *_QUOTES) if _around(text, start, end, pair)), None)
        if pair is None:
            return Piece(start, end)
        start, end = start + len(pair[0]), end - len(pair[1])
    return Piece(*_trimmed(text, start, end))


def within_one_pair(text: str, start: int, end: int) -> Piece:
    """Where `text[start:end]` stands without one pair of quotes or emphasis around all of it, if it has one."""
    pair = next((pair for pair in (*_EMPHASIS, *_QUOTES) if _around(text, start, end, pair)), None)
    if pair is None or any(mark in text[start + len(pair[0]) : end - len(pair[1])] for mark in pair):
        return Piece(start, end)
    return Piece(start + len(pair[0]), end - len(pair[1]))


def without_layout(text: str) -> str:
    """`text` without a list mark, a heading's marks, a box or a code block around it; the same where there is none."""
    mark = _LAYOUT.match(text)
    return text if mark is None else _LAYOUT_END.sub("", text[mark.end() :])


def _around(text: str, start: int, end: int, pair: tuple[str, str]) -> bool:
    opening, closing = pair
    return (
        end - start > len(opening) + len(closing)
        and text.startswith(opening, start, end)
        and text.endswith(closing, start, end)
    )


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    begin = start + len(inner) - len(inner.lstrip())
    return begin, max(begin, start + len(inner.rstrip()))
