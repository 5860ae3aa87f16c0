"""Code to copy: white space counts, indentation and ends of lines included."""

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field, field_validator

from canaries.checks._base import (
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


class ExpectedCode(Expected):
    """`code`: the exact code, blank lines around it aside. `fence`: whether it may stand in one code fence."""

    code: Annotated[str, Field(min_length=1)]
    fence: bool = False

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
    block = _block(text)
    said = text[block.start : block.end]
    begin, end = _without_blank_lines(expected.code, 0, len(expected.code))
    wanted = expected.code[begin:end]
    if block.fenced and not expected.fence:
        yield Failure("exact_code", "fenced", "line 1", "the code stands in a fence instead of bare")
    if said == wanted:
        return
    only_white_space = "".join(said.split()) == "".join(wanted.split())
    code = "different_white_space" if only_white_space else text_code(said, wanted, "different_code")
    place = place_of(text, block.start + first_difference(said, wanted))
    yield Failure("exact_code", code, place, said_instead(said, wanted, code))


def _decide_code(text: str, expected: ExpectedCode, tools: Tools) -> list[Decision]:
    """Every line that is not blank, indentation included."""
    block, found, at = _block(text), [], 0
    for line in text[: block.end].split("\n"):
        if at >= block.start and line.strip():
            found.append(Decision("line", at, at + len(line)))
        at += len(line) + 1
    return found


exact_code = Check("exact_code", ExpectedCode, _exact_code, _decide_code)
