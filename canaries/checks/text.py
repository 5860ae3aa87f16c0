"""Exact text: the whole answer, its lines, one member of a list, an ordered list."""

import re
from typing import Annotated

from pydantic import Field

from canaries.checks._base import Check, Decision, Expected, Failure, Tools, shown


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


def _first_difference(said: str, wanted: str) -> int:
    """The 1-based character at which two different texts part."""
    pairs = zip(said, wanted, strict=False)
    return next((at for at, (a, b) in enumerate(pairs, 1) if a != b), min(len(said), len(wanted)) + 1)


def _exact_text(text: str, expected: ExpectedText, tools: Tools) -> list[Failure]:
    said = text.strip()
    if said == expected.text:
        return []
    place = f"character {_first_difference(said, expected.text)}"
    return [Failure("exact_text", "different_text", place, f"says {shown(said)}, not {shown(expected.text)}")]


def _exact_lines(text: str, expected: ExpectedLines, tools: Tools) -> list[Failure]:
    said = [line.strip() for line in text.split("\n") if line.strip()]
    failures = []
    if len(said) != len(expected.lines):
        message = f"{len(said)} values instead of {len(expected.lines)}"
        failures.append(Failure("exact_lines", "wrong_count", "answer", message))
    for number, (line, wanted) in enumerate(zip(said, expected.lines, strict=False), 1):
        if line != wanted:
            place = f"line {number}, character {_first_difference(line, wanted)}"
            message = f"says {shown(line)}, not {shown(wanted)}"
            failures.append(Failure("exact_lines", "different_value", place, message))
    return failures


def _enum_member(text: str, expected: ExpectedMember, tools: Tools) -> list[Failure]:
    said = text.strip()
    if said == expected.value:
        return []
    code = "wrong_member" if said in expected.options else "not_a_member"
    return [Failure("enum_member", code, "answer", f"says {shown(said)}, not {shown(expected.value)}")]


def _ordered_list(text: str, expected: ExpectedList, tools: Tools) -> list[Failure]:
    said = [item.strip() for item in re.split(r"[,\n]", text.strip())]
    if said == expected.items:
        return []
    missing = [item for item in expected.items if item not in said]
    extra = [item for item in said if item not in expected.items]
    failures = [Failure("ordered_list", "missing_item", "answer", f"{shown(item)} is missing") for item in missing]
    for at, item in enumerate(said, 1):
        if item in extra:
            failures.append(Failure("ordered_list", "unknown_item", f"item {at}", f"{shown(item)} is not in the list"))
    if not missing and not extra:
        if len(said) != len(expected.items):
            message = f"{len(said)} items instead of {len(expected.items)}"
            return [Failure("ordered_list", "repeated_item", "answer", message)]
        at = next(at for at, (a, b) in enumerate(zip(said, expected.items, strict=True), 1) if a != b)
        message = f"{shown(said[at - 1])} stands where {shown(expected.items[at - 1])} belongs"
        failures.append(Failure("ordered_list", "wrong_order", f"item {at}", message))
    return failures


def _inner(text: str, kind: str, wrong: tuple[str, ...] = (), offset: int = 0) -> Decision:
    """The decision for `text` without its outer white space, which begins at `offset` of the answer."""
    start = offset + len(text) - len(text.lstrip())
    return Decision(kind, start, start + len(text.strip()), wrong)


def _pieces(text: str, separator: str, kind: str) -> list[Decision]:
    """What stands between separators of one character, outer white space aside."""
    said = text.strip()
    offset = len(text) - len(text.lstrip())
    starts = [0, *(match.end() for match in re.finditer(separator, said))]
    return [_inner(piece, kind, (), offset + at) for piece, at in zip(re.split(separator, said), starts, strict=True)]


def _decide_text(text: str, expected: ExpectedText, tools: Tools) -> list[Decision]:
    return [_inner(text, "text")]


def _decide_lines(text: str, expected: ExpectedLines, tools: Tools) -> list[Decision]:
    return [piece for piece in _pieces(text, r"\n", "line") if piece.end > piece.start]


def _decide_member(text: str, expected: ExpectedMember, tools: Tools) -> list[Decision]:
    return [_inner(text, "member", tuple(option for option in expected.options if option != expected.value))]


def _decide_list(text: str, expected: ExpectedList, tools: Tools) -> list[Decision]:
    return [
        Decision("item", piece.start, piece.end, tuple(item for item in expected.items if item != right))
        for piece, right in zip(_pieces(text, r"[,\n]", "item"), expected.items, strict=True)
    ]


exact_text = Check("exact_text", ExpectedText, _exact_text, _decide_text)
exact_lines = Check("exact_lines", ExpectedLines, _exact_lines, _decide_lines)
enum_member = Check("enum_member", ExpectedMember, _enum_member, _decide_member)
ordered_list = Check("ordered_list", ExpectedList, _ordered_list, _decide_list)
