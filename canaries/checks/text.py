"""Exact text: the whole answer, its lines, a member of a list, an ordered list, code.

Common decorations of a value (quotes, emphasis, a full stop) are ignored unless the prompt forbids them; in code, white
space counts, including indentation and ends of lines.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from q36eval.canaries.checks.base import (
    DIFFERENT_NORMALIZATION,
    Check,
    Decision,
    Expected,
    Failure,
    Tools,
    first_difference,
    place_of,
    said_instead,
    shown,
    text_code,
)
from q36eval.canaries.checks.prose import CodeBlock, Piece, code_blocks, trimmed

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
    """The value's span in `text[start:end]`: without white space, pairs of quotes or emphasis, one full stop."""
    end = len(text) if end is None else end
    stopped = False
    for _ in range(_MAX_DEPTH):
        start, end = trimmed(text, start, end)
        if not stopped and end - start > 1 and text[end - 1] == "." and text[end - 2] != ".":
            end, stopped = end - 1, True
            continue
        pair = _pair_around(text, start, end)
        if pair is None:
            return Piece(start, end)
        start, end = start + len(pair[0]), end - len(pair[1])
    return Piece(*trimmed(text, start, end))


def within_one_pair(text: str, start: int, end: int) -> Piece:
    """The span of `text[start:end]` without one pair of quotes or emphasis around it, if any."""
    pair = _pair_around(text, start, end)
    if pair is None or any(mark in text[start + len(pair[0]) : end - len(pair[1])] for mark in pair):
        return Piece(start, end)
    return Piece(start + len(pair[0]), end - len(pair[1]))


def without_layout(text: str) -> str:
    """`text` without a list mark, a heading's marks, a box or a code block around it; unchanged without any."""
    mark = _LAYOUT.match(text)
    return text if mark is None else _LAYOUT_END.sub("", text[mark.end() :])


def _pair_around(text: str, start: int, end: int) -> tuple[str, str] | None:
    """The marks of emphasis or quotes around `text[start:end]`."""
    for opening, closing in (*_EMPHASIS, *_QUOTES):
        longer = end - start > len(opening) + len(closing)
        if longer and text.startswith(opening, start, end) and text.endswith(closing, start, end):
            return opening, closing
    return None


_LINE = re.compile(r"\S[^\n]*")
_SEPARATORS = {
    "any": re.compile(r",[ \t\r]*\n?|\n"),
    "comma": re.compile(r",[ \t\r]*\n?"),
    "line": re.compile(r"\n"),
}


class ExpectedText(Expected):
    """`text`: the whole answer, ignoring outer white space."""

    text: str


class ExpectedLines(Expected):
    """`lines`: the values to copy, one per line, in order. `formatting`: whether the prompt leaves it open; where it
    does, marks of code around a right value make the answer unreadable, not wrong."""

    lines: Annotated[list[str], Field(min_length=1)]
    formatting: bool = True


class ExpectedMember(Expected):
    """`value`: the right member of the closed list `options`.

    Letter case, a final full stop, quotation marks and emphasis around it are ignored, unless the prompt forbids them:
    then `exactly` is true.
    """

    value: str
    options: Annotated[list[str], Field(min_length=2)]
    exactly: bool = False


class ExpectedList(Expected):
    """`items`: the whole list in its right order. `separator`: what the prompt wants between them (`comma`, `line`, or
    `any` of the two). `exactly` is that of a member."""

    items: Annotated[list[str], Field(min_length=1)]
    separator: Literal["any", "comma", "line"] = "any"
    exactly: bool = False


def _text_failure(check: str, code: str, text: str, start: int, said: str, wanted: str) -> Failure:
    """The failure that `said`, at `text[start]`, is not `wanted`."""
    code = text_code(said, wanted, code)
    place = place_of(text, start + first_difference(said, wanted))
    return Failure(check, code, place, said_instead(said, wanted, code))


def _exact_text(text: str, expected: ExpectedText, tools: Tools) -> Iterator[Failure]:
    said, start = text.strip(), len(text) - len(text.lstrip())
    if said != expected.text:
        yield _text_failure("exact_text", "different_text", text, start, said, expected.text)


def _exact_lines(text: str, expected: ExpectedLines, tools: Tools) -> Iterator[Failure]:
    said = [match.span() for match in _LINE.finditer(text)]
    if expected.formatting and _is_in_block(text, expected.lines):
        message = "the values stand in a block of code: is that a copy?"
        yield Failure("exact_lines", "code_marks", "answer", message, unreadable=True)
        return
    if len(said) != len(expected.lines):
        message = f"{len(said)} values instead of {len(expected.lines)}"
        yield Failure("exact_lines", "wrong_count", "answer", message)
    for (start, end), wanted in zip(said, expected.lines, strict=False):
        line = text[start:end].rstrip()
        if expected.formatting and line == f"`{wanted}`":
            message = f"{shown(line)} is the value in marks of code: is that a copy?"
            yield Failure("exact_lines", "code_marks", place_of(text, start), message, unreadable=True)
        elif line != wanted:
            yield _text_failure("exact_lines", "different_value", text, start, line, wanted)


def _is_in_block(text: str, wanted: list[str]) -> bool:
    """Whether the answer is one block of code with exactly these lines."""
    block, fenced = _block(text)
    return fenced and [line.group().rstrip() for line in _LINE.finditer(text, *block)] == wanted


def _value(text: str, exactly: bool) -> Piece:
    return trimmed(text, 0, len(text)) if exactly else value_within(text)


def _read(said: str, wanted: list[str], exactly: bool) -> str:
    """The matching one of `wanted`; `said` itself without a match. Letter case counts only with `exactly`."""
    if exactly or said in wanted:
        return said
    small = said.casefold()
    return next((one for one in wanted if one.casefold() == small), said)


def _enum_member(text: str, expected: ExpectedMember, tools: Tools) -> Iterator[Failure]:
    place = _value(text, expected.exactly)
    known = [expected.value, *expected.options]
    said = _read(text[place.start : place.end], known, expected.exactly)
    if said == expected.value:
        return
    inner = without_layout(text)
    if inner != text and not expected.exactly:
        within = value_within(inner)
        if _read(inner[within.start : within.end], known, False) == expected.value:
            message = f"{shown(text.strip())} is the value in the form of a list or a box: is that only the value?"
            yield Failure("enum_member", "marked_value", "answer", message, unreadable=True)
            return
    code = "wrong_member" if said in expected.options else text_code(said, expected.value, "not_a_member")
    yield Failure("enum_member", code, "answer", said_instead(said, expected.value, code))


def _pieces(text: str, expected: ExpectedList) -> list[Piece]:
    """The spans of the items."""
    start, end = _value(text, True)
    if not expected.exactly:
        stop = 1 if text.endswith((".", ".\n"), start, end) and text[start:end].count(".") == 1 else 0
        whole = within_one_pair(text, start, end - stop)
        start, end = whole if whole != Piece(start, end - stop) else (start, end)
    pieces = []
    for match in _SEPARATORS[expected.separator].finditer(text, start, end):
        pieces.append(_item(text, start, match.start(), expected.exactly))
        start = match.end()
    return [*pieces, _item(text, start, end, expected.exactly, last=True)]


def _item(text: str, start: int, end: int, exactly: bool, *, last: bool = False) -> Piece:
    """One item; only the last may end with a full stop."""
    if exactly or (not last and text[start:end].rstrip().endswith(".")):
        return trimmed(text, start, end)
    return value_within(text, start, end)


def _ordered_list(text: str, expected: ExpectedList, tools: Tools) -> Iterator[Failure]:
    pieces = _pieces(text, expected)
    said = [_read(text[piece.start : piece.end], expected.items, expected.exactly) for piece in pieces]
    if said == expected.items:
        return
    composed = _only_composed(said, expected.items)
    if composed is not None:
        message = said_instead(said[composed], expected.items[composed], DIFFERENT_NORMALIZATION)
        yield Failure("ordered_list", DIFFERENT_NORMALIZATION, f"item {composed + 1}", message)
        return
    given, known = set(said), set(expected.items)
    for item in expected.items:
        if item not in given:
            yield Failure("ordered_list", "missing_item", "answer", f"{shown(item)} is missing")
    for at, item in enumerate(said, 1):
        if item not in known:
            yield Failure("ordered_list", "unknown_item", f"item {at}", f"{shown(item)} is not in the list")
    if given == known:
        yield _order_failure(said, expected.items)


def _only_composed(said: list[str], wanted: list[str]) -> int | None:
    """The first differing item, if all differences are only in the composition of letters."""
    if len(said) != len(wanted):
        return None
    differing = [at for at, (a, b) in enumerate(zip(said, wanted, strict=True)) if a != b]
    composed = all(text_code(said[at], wanted[at], "") for at in differing)
    return differing[0] if composed else None


def _order_failure(said: list[str], wanted: list[str]) -> Failure:
    if len(said) != len(wanted):
        message = f"{len(said)} items instead of {len(wanted)}"
        return Failure("ordered_list", "repeated_item", "answer", message)
    at = next(at for at, (a, b) in enumerate(zip(said, wanted, strict=True)) if a != b)
    message = f"{shown(said[at])} instead of {shown(wanted[at])}"
    return Failure("ordered_list", "wrong_order", f"item {at + 1}", message)


def _decide_text(text: str, expected: ExpectedText, tools: Tools) -> list[Decision]:
    start = len(text) - len(text.lstrip())
    return [Decision("text", start, start + len(text.strip()))]


def _decide_lines(text: str, expected: ExpectedLines, tools: Tools) -> list[Decision]:
    lines = (match.span() for match in _LINE.finditer(text))
    return [Decision("line", start, start + len(text[start:end].rstrip())) for start, end in lines]


def _decide_member(text: str, expected: ExpectedMember, tools: Tools) -> list[Decision]:
    place = _value(text, expected.exactly)
    wrong = tuple(option for option in expected.options if option != expected.value)
    return [Decision("member", place.start, place.end, wrong)]


def _decide_list(text: str, expected: ExpectedList, tools: Tools) -> list[Decision]:
    decided = []
    for piece, right in zip(_pieces(text, expected), expected.items, strict=True):
        others = tuple(item for item in expected.items if item != right)
        decided.append(Decision("item", piece.start, piece.end, others))
    return decided


exact_text = Check("exact_text", ExpectedText, _exact_text, _decide_text)
exact_lines = Check("exact_lines", ExpectedLines, _exact_lines, _decide_lines)
enum_member = Check("enum_member", ExpectedMember, _enum_member, _decide_member)
ordered_list = Check("ordered_list", ExpectedList, _ordered_list, _decide_list)


class ExpectedCode(Expected):
    """`code`: the exact code, blank lines around it aside. `fence`: whether it may stand in one code fence.

    `one_block`: the prompt demands one block of code. Then there must be exactly one, prose around it is free, and
    blank lines within it count.
    """

    code: Annotated[str, Field(min_length=1)]
    fence: bool = False
    one_block: bool = False

    @field_validator("code")
    @classmethod
    def _has_code(cls, code: str) -> str:
        if not code.strip():
            raise ValueError("there is nothing but white space to copy")
        return code


def _block(text: str) -> tuple[Piece, bool]:
    """Where the code is, without a fence around all of it and blank lines before and after; whether it is fenced."""
    match code_blocks(text):
        case [CodeBlock(outer, inner)] if trimmed(text, *outer) == trimmed(text, 0, len(text)):
            return _without_blank_lines(text, *inner), True
    return _without_blank_lines(text, 0, len(text)), False


def _without_blank_lines(text: str, start: int, end: int) -> Piece:
    """The lines from the first to the last that is not blank, without the last one's line end."""
    first = re.compile(r"\S").search(text, start, end)
    if first is None:
        return Piece(end, end)
    begin = max(start, text.rfind("\n", start, first.start()) + 1)
    last = start + len(text[start:end].rstrip())
    line_end = text.find("\n", last, end)
    return Piece(begin, end if line_end < 0 else line_end)


def _exact_code(text: str, expected: ExpectedCode, tools: Tools) -> Iterator[Failure]:
    (block, fenced), wanted = _block(text), expected.code
    if expected.one_block:
        blocks = code_blocks(text)
        if len(blocks) != 1 or blocks[0] is None:
            code, message = "wrong_blocks", f"{len(blocks)} blocks of code instead of one"
            if None in blocks:
                code, message = "unclosed_block", "a block of code is not closed"
            yield Failure("exact_code", code, "answer", message)
            return
        block = blocks[0].inner
    else:
        begin, end = _without_blank_lines(wanted, 0, len(wanted))
        wanted = wanted[begin:end]
        if fenced and not expected.fence:
            yield Failure("exact_code", "fenced", "line 1", "the code stands in a fence instead of bare")
    said = text[block.start : block.end]
    if said == wanted:
        return
    only_white_space = "".join(said.split()) == "".join(wanted.split())
    code = "different_white_space" if only_white_space else text_code(said, wanted, "different_code")
    place = place_of(text, block.start + first_difference(said, wanted))
    yield Failure("exact_code", code, place, said_instead(said, wanted, code))


def _decide_code(text: str, expected: ExpectedCode, tools: Tools) -> list[Decision]:
    """Every line that is not blank, indentation included."""
    (block, _), decided, at = _block(text), [], 0
    if expected.one_block:
        block = next(block.inner for block in code_blocks(text) if block is not None)
    for line in text[: block.end].split("\n"):
        if at >= block.start and line.strip():
            decided.append(Decision("line", at, at + len(line)))
        at += len(line) + 1
    return decided


exact_code = Check("exact_code", ExpectedCode, _exact_code, _decide_code)
