"""Code to copy: white space counts, indentation and ends of lines included."""

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field, field_validator

from q36eval.canaries.checks._base import (
    Check,
    Decision,
    Expected,
    Failure,
    Tools,
    first_difference,
    place_of,
    said_instead,
    text_code,
)

_FENCE = re.compile(r"\s*?(```|~~~)[ \t]*[\w+#.-]{0,30}[ \t]*\n")


_OPENS = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*$", re.MULTILINE)


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


class _Block(NamedTuple):
    start: int
    end: int
    fenced: bool


def _block(text: str) -> _Block:
    """Where the code stands: without one fence around all of it, without blank lines before and after."""
    start, end = 0, len(text.rstrip())
    fence = _FENCE.match(text)
    fenced = fence is not None and text[:end].endswith("\n" + fence.group(1), fence.end() - 1)
    if fence is not None and fenced:
        start, end = fence.end(), max(fence.end(), end - len(fence.group(1)))
    return _Block(*_without_blank_lines(text, start, end if fenced else len(text)), fenced)


def _blocks(text: str) -> list[_Block | None]:
    """The fenced blocks of an answer, after CommonMark; None for one that is not closed."""
    found: list[_Block | None] = []
    at = 0
    while opening := _OPENS.search(text, at):
        mark = opening.group(1)
        start = min(len(text), opening.end() + 1)
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t\r]*$", re.MULTILINE).search(text, start)
        if closing is None:
            return [*found, None]
        found.append(_Block(start, max(start, closing.start() - 1), True))
        at = closing.end()
    return found


def _without_blank_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """The lines from the first to the last that is not blank, without the last one's line end."""
    first = re.compile(r"\S").search(text, start, end)
    if first is None:
        return end, end
    begin = max(start, text.rfind("\n", start, first.start()) + 1)
    last = start + len(text[start:end].rstrip())
    line_end = text.find("\n", last, end)
    return begin, end if line_end < 0 else line_end


def _exact_code(text: str, expected: ExpectedCode, tools: Tools) -> Iterator[Failure]:
    block, wanted = _block(text), expected.code
    if expected.one_block:
        blocks = _blocks(text)
        if len(blocks) != 1 or blocks[0] is None:
            code, message = "wrong_blocks", f"{len(blocks)} blocks of code instead of one"
            if None in blocks:
                code, message = "unclosed_block", "a block of code is not closed"
            yield Failure("exact_code", code, "answer", message)
            return
        block = blocks[0]
    else:
        begin, end = _without_blank_lines(wanted, 0, len(wanted))
        wanted = wanted[begin:end]
        if block.fenced and not expected.fence:
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
    block, found, at = _block(text), [], 0
    if expected.one_block:
        block = next(block for block in _blocks(text) if block is not None)
    for line in text[: block.end].split("\n"):
        if at >= block.start and line.strip():
            found.append(Decision("line", at, at + len(line)))
        at += len(line) + 1
    return found


exact_code = Check("exact_code", ExpectedCode, _exact_code, _decide_code)
