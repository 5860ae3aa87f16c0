"""Regular expressions that people write, with a limit of time: some backtrack for ever."""

from typing import Any

import regex

from canaries.checks._base import NotJudgedError, shown

PATTERN_SECONDS = 1.0
"""What one search may take before it counts as one that never ends."""


def compiled(pattern: str, what: str) -> Any:
    """A regular expression of the `regex` library.

    Raises:
        ValueError: it is none; the sentence begins with `what`.
    """
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{what} is no regular expression: {shown(pattern)}: {error}") from error


def search(pattern: str, text: str) -> Any:
    """The first match or None.

    Raises:
        NotJudgedError: the pattern ran out of time, which says nothing of the text.
    """
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS)
    except TimeoutError as error:
        message = f"the pattern {shown(pattern)} ran out of its {PATTERN_SECONDS:g} s on {len(text)} characters"
        raise NotJudgedError(message) from error
