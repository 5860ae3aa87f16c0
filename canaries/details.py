"""A judged answer's data besides its score, read from its details: failed checks, margins, other batches.

Pages and reports import this module, so it must not import torch or the checks.
"""

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ConfigDict

from q36eval.records import Answer, Record


@dataclass(frozen=True)
class Failure:
    """One fault of an answer. `code` is for grouping in reports; `place` is the position in the answer.

    An `unreadable` one is not a fault: the check cannot read the answer, though a person might.
    """

    check: str
    code: str
    place: str
    message: str
    unreadable: bool = False

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; `unreadable` is included if true."""
        fields = asdict(self)
        if not self.unreadable:
            del fields["unreadable"]
        return fields

    @property
    def source(self) -> str:
        """The check, the code and the position."""
        return f"{self.check}/{self.code}" + (f" at {self.place}" if self.place else "")


class DecisiveMargin(Record):
    """The smallest margin in nats of a right choice over the best wrong one in the reference's answer.

    `decision` is the kind of decision (a conclusion, a tool's name), `position` the token of the answer.
    """

    nats: float
    decision: str = ""
    right: str = ""
    wrong: str = ""
    position: int | None = None


class Divergence(Record):
    """One model's token at the first difference of the two answers, and its most likely tokens with log-probs."""

    position: int
    said: str
    top: tuple[tuple[str, float], ...]


class Repeat(Record):
    """The answer to the same question in another batch; `score` is None if it errored or is unreadable."""

    model_config = ConfigDict(extra="ignore")

    score: float | None
    unreadable: str | None = None


class Details(Record):
    """`Answer.detail` of a canary; `schema_ok` is None without a tool call, `budget` without reasoning."""

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
        """The details of an answer.

        Raises:
            ValidationError: they do not have this form.
        """
        return cls.model_validate(answer.detail)

    @property
    def codes(self) -> set[str]:
        """Of the failed checks."""
        return {failure.code for failure in self.failures}

    @property
    def cut_off(self) -> bool:
        """Whether the answer did not end within its budget."""
        return self.finish_reason == "length"
