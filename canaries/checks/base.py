"""The definition of a check and of its results."""

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
"""The maximum of failures that one check reports per answer; a mangled megabyte could give a million."""

WORDS: dict[str, Any] = read_our_yaml(Path(__file__).with_name("words.yaml"))
"""Words for reading answers."""

DIFFERENT_NORMALIZATION = "different_normalization"


class Outcome(StrEnum):
    """The checks' result for an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    UNREADABLE = "unreadable"
    """No check finds a fault, and one cannot read the answer: neither right nor wrong."""


def outcome_of(failures: Iterable[Failure]) -> Outcome:
    """One fault makes an answer wrong, even if other parts are unreadable."""
    unreadable = False
    for failure in failures:
        if not failure.unreadable:
            return Outcome.WRONG
        unreadable = True
    return Outcome.UNREADABLE if unreadable else Outcome.RIGHT


@dataclass(frozen=True)
class Decision:
    """One decision in a right answer: its characters `text[start:end]`.

    `wrong` are the wrong alternatives for that place; empty means any other text. `kind` names the kind of decision
    (`amount`, `conclusion`, `value`, `key`, `close`, `call`, `tool`, `argument`, `member`, `item`, `line`, `text`,
    `style`).
    """

    kind: str
    start: int
    end: int
    wrong: tuple[str, ...] = ()


class NotJudgedError(Exception):
    """A check could not judge, for example because a pattern timed out. Never a wrong answer."""


class Expected(BaseModel):
    """A check's expected values for the right answer. Keys of other checks are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


ExpectedT = TypeVar("ExpectedT", bound=Expected)
Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Check(Generic[ExpectedT]):
    """A named pure function of (text, expected, offered tools). It never raises because of the text."""

    name: str
    expected: type[ExpectedT]
    judge: Callable[[str, ExpectedT, Tools], Iterable[Failure]]
    decide: Callable[[str, ExpectedT, Tools], list[Decision]] = lambda text, expected, tools: []

    @property
    def keys(self) -> frozenset[str]:
        """The keys of `expected` that it reads."""
        return frozenset(field.alias or name for name, field in self.expected.model_fields.items())

    def __call__(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Failure]:
        """Judge `text`.

        Raises:
            pydantic.ValidationError: `expected` lacks what this check needs (never because of `text`).
        """
        return first_failures(self.name, self.judge(text, self.expected.model_validate(expected), tools))

    def decisions(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Decision]:
        """The decisions that made `text` right; none if the check finds a failure.

        Raises:
            pydantic.ValidationError: `expected` lacks a value that this check needs (never because of `text`).
        """
        known = self.expected.model_validate(expected)
        return [] if any(True for _ in self.judge(text, known, tools)) else self.decide(text, known, tools)


def first_failures(check: str, failures: Iterable[Failure]) -> list[Failure]:
    """The first `MAX_FAILURES`, and a note if more exist."""
    first = list(islice(failures, MAX_FAILURES + 1))
    if len(first) <= MAX_FAILURES:
        return first
    return [*first[:MAX_FAILURES], Failure(check, "more", "answer", f"more than {MAX_FAILURES} failures")]


def place_of(text: str, index: int) -> str:
    """Line and character of `text[index]`, both from 1."""
    before = text.rfind("\n", 0, index) + 1
    return f"line {text.count(chr(10), 0, index) + 1}, character {index - before + 1}"


def first_difference(said: Sequence[object], wanted: Sequence[object]) -> int:
    """The 0-based index of the first difference of two texts or lists."""
    pairs = zip(said, wanted, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(said), len(wanted)))


def text_code(said: str, wanted: str, code: str) -> str:
    """`code`, or the code for a difference only in the composition of letters (NFC against NFD), which readers cannot
    see."""
    # canonical ordering takes quadratic time, and a text four times as long is never another form
    if len(said) > 4 * len(wanted) or len(wanted) > 4 * len(said):
        return code
    same = unicodedata.normalize("NFC", said) == unicodedata.normalize("NFC", wanted)
    return DIFFERENT_NORMALIZATION if same else code


def said_instead(said: str, wanted: str, code: str) -> str:
    """The message for a differing text."""
    note = ": the same letters, composed otherwise (Unicode NFC and NFD)" if code == DIFFERENT_NORMALIZATION else ""
    at = max(0, first_difference(said, wanted) - SHOWN_CHARACTERS // 2)
    cut = "…" if at else ""
    return f"says {cut}{shown(said[at:])}, not {cut}{shown(wanted[at:])}{note}"


def shown(value: object) -> str:
    """`value` for a message: escaped, so that no model output can break a report, and shortened."""
    text = _safe_repr(value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _safe_repr(value: object) -> str:
    """`repr`, which escapes control characters and lone surrogates but keeps Czech readable."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return f"<{type(value).__name__} too large to show>"
