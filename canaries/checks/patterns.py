"""A regular expression that an answer must match, or must not: for requirements without another check.

People write these patterns, and some backtrack endlessly: `search` has a time limit. JSON schemas use it, too.
"""

import re
from collections.abc import Iterator
from typing import Any

import regex
from pydantic import BaseModel, ConfigDict, model_validator

from q36eval.canaries.checks.base import Check, Expected, Failure, NotJudgedError, Tools, place_of, shown

PATTERN_SECONDS = 1.0
"""The time limit of one search."""

MAX_EXPANDED = 200_000
"""Nested counted repeats are expanded when compiled: `(?:(?:a{100}){100}){100}`, a million parts, takes 290 MB."""

_RECURSION = re.compile(r"(?<!\\)\(\?(?:R|[+-]?\d+|&\w+|P>\w+)\)")
"""A recursive pattern takes gigabytes before its time limit."""

_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|\{(?P<least>\d*),?(?P<most>\d*)\}|.", re.DOTALL
)


def compiled(pattern: str, what: str) -> Any:
    """A regular expression of the `regex` library.

    Raises:
        ValueError: it is invalid; the message begins with `what`.
    """
    if _expanded(pattern) > MAX_EXPANDED:
        raise ValueError(f"{what} expands to too many parts: {shown(pattern)}; do not nest counted repeats")
    if _RECURSION.search(pattern):
        raise ValueError(f"{what} refers to itself, so nothing bounds its memory: {shown(pattern)}; write it out")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{what} is not a regular expression: {shown(pattern)}: {error}") from error


def _expanded(pattern: str) -> int:
    """The number of parts of a pattern with its counted repeats expanded; any number for an invalid pattern."""
    sizes, last = [0], 0
    for part in _PART.finditer(pattern):
        if part.group("open"):
            sizes.append(0)
            last = 0
        elif part.group("close") and len(sizes) > 1:
            last = max(1, sizes.pop())
            sizes[-1] += last
        elif counts := [int(each[:9]) for each in part.group("least", "most") if each]:
            sizes[-1] += last * max(0, max(counts) - 1)
            last *= max(counts)
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def search(pattern: str, text: str) -> Any:
    """The first match or None.

    Raises:
        NotJudgedError: the pattern timed out, so the text is not judged.
    """
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS)
    except TimeoutError as error:
        message = f"the pattern {shown(pattern)} ran out of its {PATTERN_SECONDS:g} s on {len(text)} characters"
        raise NotJudgedError(message) from error


class Pattern(BaseModel):
    """Regular expressions of the `regex` library, searched for anywhere in the answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    must_match: str | None = None
    must_not_match: str | None = None

    @model_validator(mode="after")
    def _usable(self) -> "Pattern":
        if self.must_match is None and self.must_not_match is None:
            raise ValueError("give must_match, must_not_match or both")
        for name, pattern in (("must_match", self.must_match), ("must_not_match", self.must_not_match)):
            if pattern is not None:
                compiled(pattern, name)
        return self


class ExpectedPattern(Expected):
    """`pattern`: the required and the forbidden matches."""

    pattern: Pattern


def _pattern(text: str, expected: ExpectedPattern, tools: Tools) -> Iterator[Failure]:
    wanted, unwanted = expected.pattern.must_match, expected.pattern.must_not_match
    if wanted is not None and not search(wanted, text):
        yield Failure("pattern", "no_match", "answer", f"nothing matches {shown(wanted)}")
    if unwanted is not None and (match := search(unwanted, text)):
        message = f"{shown(match.group())} matches {shown(unwanted)}"
        yield Failure("pattern", "forbidden_match", place_of(text, match.start()), message)


pattern = Check("pattern", ExpectedPattern, _pattern)
