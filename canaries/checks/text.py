"""Exact text: the whole answer, its lines, one member of a list, an ordered list."""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from canaries.checks._base import (
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

_LINE = re.compile(r"\S[^\n]*")
_SEPARATOR = re.compile(r"[,\n]")


class ExpectedText(Expected):
    """`text`: the whole answer, outer white space aside."""

    text: str


class ExpectedLines(Expected):
    """`lines`: the values to copy, one per line, in order."""

    lines: Annotated[list[str], Field(min_length=1)]


class ExpectedMember(Expected):
    """`value`: the right member of the closed list `options`."""

    value: str
    options: Annotated[list[str], Field(min_length=2)]


class ExpectedList(Expected):
    """`items`: the whole list in its right order; the answer separates them by commas or line ends."""

    items: Annotated[list[str], Field(min_length=1)]


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
    if len(said) != len(expected.lines):
        message = f"{len(said)} values instead of {len(expected.lines)}"
        yield Failure("exact_lines", "wrong_count", "answer", message)
    for (start, end), wanted in zip(said, expected.lines, strict=False):
        line = text[start:end].rstrip()
        if line != wanted:
            yield _text_failure("exact_lines", "different_value", text, start, line, wanted)


def _enum_member(text: str, expected: ExpectedMember, tools: Tools) -> Iterator[Failure]:
    said = text.strip()
    if said != expected.value:
        code = "wrong_member" if said in expected.options else text_code(said, expected.value, "not_a_member")
        yield Failure("enum_member", code, "answer", said_instead(said, expected.value, code))


def _ordered_list(text: str, expected: ExpectedList, tools: Tools) -> Iterator[Failure]:
    said = [item.strip() for item in _SEPARATOR.split(text.strip())]
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


def _inner(text: str, kind: str, wrong: tuple[str, ...] = (), offset: int = 0) -> Decision:
    """The decision for `text` without its outer white space, which begins at `offset` of the answer."""
    start = offset + len(text) - len(text.lstrip())
    return Decision(kind, start, start + len(text.strip()), wrong)


def _decide_text(text: str, expected: ExpectedText, tools: Tools) -> list[Decision]:
    return [_inner(text, "text")]


def _decide_lines(text: str, expected: ExpectedLines, tools: Tools) -> list[Decision]:
    lines = (match.span() for match in _LINE.finditer(text))
    return [Decision("line", start, start + len(text[start:end].rstrip())) for start, end in lines]


def _decide_member(text: str, expected: ExpectedMember, tools: Tools) -> list[Decision]:
    return [_inner(text, "member", tuple(option for option in expected.options if option != expected.value))]


def _decide_list(text: str, expected: ExpectedList, tools: Tools) -> list[Decision]:
    found, at = [], len(text) - len(text.lstrip())
    for piece, right in zip(_SEPARATOR.split(text.strip()), expected.items, strict=True):
        others = tuple(item for item in expected.items if item != right)
        found.append(_inner(piece, "item", others, at))
        at += len(piece) + 1
    return found


exact_text = Check("exact_text", ExpectedText, _exact_text, _decide_text)
exact_lines = Check("exact_lines", ExpectedLines, _exact_lines, _decide_lines)
enum_member = Check("enum_member", ExpectedMember, _enum_member, _decide_member)
ordered_list = Check("ordered_list", ExpectedList, _ordered_list, _decide_list)
