"""What a judged answer keeps beside its score, read from its details: failed checks, margins, other batches.

Pages and reports import this module, so it must not lead to torch or to the checks.
"""

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ConfigDict

from q36eval.records import Answer, Record


@dataclass(frozen=True)
class Failure:
    """One thing wrong with an answer. `code` is what reports group by; `place` says where in the answer.

    One that is `unreadable` is no fault: there the check cannot tell what the answer says, though a person might.
    """

    check: str
    code: str
    place: str
    message: str
    unreadable: bool = False

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; `unreadable` stands in it where it is true."""
        fields = asdict(self)
        if not self.unreadable:
            del fields["unreadable"]
        return fields

    @property
    def source(self) -> str:
        """Which check found it, by what code and where."""
        return f"{self.check}/{self.code}" + (f" at {self.place}" if self.place else "")


class DecisiveMargin(Record):
    """By how many nats the right choice leads the best wrong one, where that lead is least in the reference's answer.

    `decision` is what is decided there (a conclusion, a tool's name), `position` the token of the answer.
    """

    nats: float
    decision: str = ""
    right: str = ""
    wrong: str = ""
    position: int | None = None


class Divergence(Record):
    """What one model said at the first token where the two answers part, and its likeliest tokens with log-probs."""

    position: int
    said: str
    top: tuple[tuple[str, float], ...]


class Repeat(Record):
    """The answer to the same question in another batch; `score` is None where it errored or cannot be read."""

    model_config = ConfigDict(extra="ignore")

    score: float | None
    unreadable: str | None = None


class Details(Record):
    """`Answer.detail` of a canary; `schema_ok` is None where no tool was called, `budget` without reasoning."""

    model_config = ConfigDict(extra="ignore")

    failures: tuple[Failure, ...] = ()
    finish_reason: str | None = None
    tokens: int = 0
    budget: int | None = None
    loops: bool = False
    schema_ok: bool | None = None
    margin: DecisiveMargin | None = None
    divergence: Divergence | None = None
    repeats: tuple[Repeat, ...] = ()

    @classmethod
    def of(cls, answer: Answer) -> "Details":
        """Those of an answer.

        Raises:
            ValidationError: they are not of this shape.
        """
        return cls.model_validate(answer.detail)

    @property
    def codes(self) -> set[str]:
        """Of the failed checks."""
        return {failure.code for failure in self.failures}

    @property
    def cut_off(self) -> bool:
        """Whether the answer had no end within its budget."""
        return self.finish_reason == "length"
