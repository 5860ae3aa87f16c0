"""What a check is and what it reports."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Failure:
    """One thing wrong with an answer. `code` is what reports group by; `place` says where in the answer."""

    check: str
    code: str
    place: str
    message: str

    def as_dict(self) -> dict[str, str]:
        """A JSON object."""
        return asdict(self)


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
    judge: Callable[[str, ExpectedT, Tools], list[Failure]]
    decide: Callable[[str, ExpectedT, Tools], list[Decision]] = lambda text, expected, tools: []

    def __call__(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Failure]:
        """Judge `text`.

        Raises:
            pydantic.ValidationError: `expected` lacks what this check needs (never because of `text`).
        """
        return self.judge(text, self.expected.model_validate(expected), tools)

    def decisions(self, text: str, expected: dict[str, Any], tools: Tools = ()) -> list[Decision]:
        """The choices that made `text` right; none where the check finds a failure.

        Raises:
            pydantic.ValidationError: `expected` lacks what this check needs (never because of `text`).
        """
        known = self.expected.model_validate(expected)
        return [] if self.judge(text, known, tools) else self.decide(text, known, tools)


def shown(value: object) -> str:
    """`value` for a message: escaped, so that no model output can break a report, and cut short."""
    text = _safe_repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _safe_repr(value: object) -> str:
    """`repr`, which escapes control characters and lone surrogates but keeps Czech readable."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return f"<{type(value).__name__} too large to show>"
