"""Exact text: the whole answer, its lines, one member of a list, an ordered list."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from q36eval.canaries.checks._base import (
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
from q36eval.canaries.checks._prose import Piece
from q36eval.canaries.checks._wrapping import value_within, within_one_pair, without_layout

_LINE = re.compile(r"\S[^\n]*")
_SEPARATORS = {
    "any": re.compile(r",[ \t\r]*\n?|\n"),
    "comma": re.compile(r",[ \t\r]*\n?"),
    "line": re.compile(r"\n"),
}


class ExpectedText(Expected):
    """`text`: the whole answer, outer white space aside."""

    text: str


class ExpectedLines(Expected):
    """`lines`: the values to copy, one per line, in order. `formatting`: whether the prompt leaves it open; where it
    does, marks of code around a right value make the answer unreadable, not wrong."""

    lines: Annotated[list[str], Field(min_length=1)]
    formatting: bool = True


class ExpectedMember(Expected):
    """`value`: the right member of the closed list `options`.

    Letter case, a final full stop, quotation marks and emphasis around it do not count, unless the prompt forbids them:
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
    """`said`, which begins at `text[start]`, is not `wanted`."""
    code = text_code(said, wanted, code)
    place = place_of(text, start + first_difference(said, wanted))
    return Failure(check, code, place, said_instead(said, wanted, code))


def _exact_text(text: str, expected: ExpectedText, tools: Tools) -> Iterator[Failure]:
    said, start = text.strip(), len(text) - len(text.lstrip())
    if said != expected.text:
        yield _text_failure("exact_text", "different_text", text, start, said, expected.text)


def _exact_lines(text: str, expected: ExpectedLines, tools: Tools) -> Iterator[Failure]:
    said = [match.span() for match in _LINE.finditer(text)]
    if expected.formatting and _is_in_block(text, said, expected.lines):
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


def _is_in_block(text: str, said: list[tuple[int, int]], wanted: list[str]) -> bool:
    """Whether just these lines stand between the marks of one block of code."""
    lines = [text[start:end].rstrip() for start, end in said]
    return len(lines) > 2 and _OPENS.fullmatch(lines[0]) is not None and lines[-1] == "```" and lines[1:-1] == wanted


_OPENS = re.compile(r"```[a-zA-Z]*")


def _value(text: str, exactly: bool) -> Piece:
    if exactly:
        start = len(text) - len(text.lstrip())
        return Piece(start, max(start, len(text.rstrip())))
    return value_within(text)


def _read(said: str, wanted: list[str], exactly: bool) -> str:
    """The one of `wanted` that is said; what is said where it is none of them. Letter case counts only `exactly`."""
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
    """Where the items stand."""
    start, end = _value(text, True)
    if not expected.exactly:
        stop = 1 if text.endswith((".", ".\n"), start, end) and text[start:end].count(".") == 1 else 0
        whole = within_one_pair(text, start, end - stop)
        start, end = whole if whole != Piece(start, end - stop) else (start, end)
    found = []
    for match in _SEPARATORS[expected.separator].finditer(text, start, end):
        found.append(_item(text, start, match.start(), expected.exactly))
        start = match.end()
    return [*found, _item(text, start, end, expected.exactly, last=True)]


def _item(text: str, start: int, end: int, exactly: bool, *, last: bool = False) -> Piece:
    """One item; only the last may have a full stop after it."""
    place = value_within(text, start, end)
    if exactly or (not last and text[start:end].rstrip().endswith(".")):
        inner = text[start:end]
        begin = start + len(inner) - len(inner.lstrip())
        return Piece(begin, max(begin, start + len(inner.rstrip())))
    return place


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
    """The first item that differs, where all that differ do so in how their letters are composed only."""
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
    message = f"{shown(said[at])} stands where {shown(wanted[at])} belongs"
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
    found = []
    for piece, right in zip(_pieces(text, expected), expected.items, strict=True):
        others = tuple(item for item in expected.items if item != right)
        found.append(Decision("item", piece.start, piece.end, others))
    return found


exact_text = Check("exact_text", ExpectedText, _exact_text, _decide_text)
exact_lines = Check("exact_lines", ExpectedLines, _exact_lines, _decide_lines)
enum_member = Check("enum_member", ExpectedMember, _enum_member, _decide_member)
ordered_list = Check("ordered_list", ExpectedList, _ordered_list, _decide_list)
