"""What a check is and what it reports."""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from q36eval.canaries.details import Failure as Failure
from q36eval.files import read_our_yaml

SHOWN_CHARACTERS = 80
MAX_FAILURES = 50
"""Failures that one check reports of one answer; a mangled megabyte could give a million."""

WORDS: dict[str, Any] = read_our_yaml(Path(__file__).with_name("words.yaml"))
"""Words that answers are read by."""

DIFFERENT_NORMALIZATION = "different_normalization"


class Outcome(StrEnum):
    """What the checks make of an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    UNREADABLE = "unreadable"
    """No check finds a fault, and one cannot tell what the answer says: neither right nor wrong."""


def outcome_of(failures: Iterable[Failure]) -> Outcome:
    """One fault makes an answer wrong, whatever else of it cannot be read."""
    unreadable = False
    for failure in failures:
        if not failure.unreadable:
            return Outcome.WRONG
        unreadable = True
    return Outcome.UNREADABLE if unreadable else Outcome.RIGHT


@dataclass(frozen=True)
class Decision:
    """One choice that a right answer made: its characters `text[start:end]`.

    `wrong` are the texts that could wrongly stand there instead; empty means whatever else. `kind` names what was
    chosen (`amount`, `conclusion`, `value`, `key`, `close`, `call`, `tool`, `argument`, `member`, `item`, `line`,
    `text`, `style`).
    """

    kind: str
    start: int
    end: int
    wrong: tuple[str, ...] = ()


class NotJudgedError(Exception):
    """A check could not come to a judgement, as when a pattern ran out of time. Never a wrong answer."""


class Expected(BaseModel):
    """What a check needs to know of the right answer. Keys that belong to other checks are left to them."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


ExpectedT = TypeVar("ExpectedT", bound=Expected)
Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Check(Generic[ExpectedT]):
    """A pure function of (text, expected, offered tools) under a name. It never raises, whatever the text."""

    name: str
    expected: type[ExpectedT]
    judge: Callable[[str, ExpectedT, Tools], Iterable[Failure]]
    decide: Callable[[str, ExpectedT, Tools], list[Decision]] = lambda text, expected, tools: []

    @property
    def keys(self) -> frozenset[str]:
        """What it reads of `expected`."""
        return frozenset(field.alias or name for name, field in self.expected.model_fields.items())

    def __call__(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Failure]:
        """Judge `text`.

        Raises:
            pydantic.ValidationError: `expected` lacks what this check needs (never because of `text`).
        """
        return first_failures(self.name, self.judge(text, self.expected.model_validate(expected), tools))

    def decisions(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Decision]:
        """The choices that made `text` right; none where the check finds a failure.

        Raises:
            pydantic.ValidationError: `expected` lacks what this check needs (never because of `text`).
        """
        known = self.expected.model_validate(expected)
        return [] if any(True for _ in self.judge(text, known, tools)) else self.decide(text, known, tools)


def first_failures(check: str, failures: Iterable[Failure]) -> list[Failure]:
    """The first `MAX_FAILURES`, and a note where there are more."""
    first = list(islice(failures, MAX_FAILURES + 1))
    if len(first) <= MAX_FAILURES:
        return first
    return [*first[:MAX_FAILURES], Failure(check, "more", "answer", f"more than {MAX_FAILURES} failures")]


def place_of(text: str, index: int) -> str:
    """Line and character of `text[index]`, both from 1."""
    before = text.rfind("\n", 0, index) + 1
    return f"line {text.count(chr(10), 0, index) + 1}, character {index - before + 1}"


def first_difference(said: Sequence[object], wanted: Sequence[object]) -> int:
    """The 0-based place at which two different texts, or lists, part."""
    pairs = zip(said, wanted, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(said), len(wanted)))


def text_code(said: str, wanted: str, code: str) -> str:
    """`code`, or that the two differ only in how letters are composed (NFC against NFD), which readers cannot see."""
    # canonical ordering takes quadratic time, and a text four times as long is no other form of the same
    if len(said) > 4 * len(wanted) or len(wanted) > 4 * len(said):
        return code
    same = unicodedata.normalize("NFC", said) == unicodedata.normalize("NFC", wanted)
    return DIFFERENT_NORMALIZATION if same else code


def said_instead(said: str, wanted: str, code: str) -> str:
    """The message of a text that differs."""
    note = ": the same letters, composed otherwise (Unicode NFC and NFD)" if code == DIFFERENT_NORMALIZATION else ""
    at = max(0, first_difference(said, wanted) - SHOWN_CHARACTERS // 2)
    cut = "…" if at else ""
    return f"says {cut}{shown(said[at:])}, not {cut}{shown(wanted[at:])}{note}"


def shown(value: object) -> str:
    """`value` for a message: escaped, so that no model output can break a report, and cut short."""
    text = _safe_repr(value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _safe_repr(value: object) -> str:
    """`repr`, which escapes control characters and lone surrogates but keeps Czech readable."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return f"<{type(value).__name__} too large to show>"
