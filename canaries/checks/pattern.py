"""A regular expression that an answer must match, or must not: for what no other check can say."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, model_validator

from q36eval.canaries.checks._base import Check, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks._regex import compiled, search


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
    """`pattern`: what the answer must match, what it must not."""

    pattern: Pattern


def _pattern(text: str, expected: ExpectedPattern, tools: Tools) -> Iterator[Failure]:
    wanted, unwanted = expected.pattern.must_match, expected.pattern.must_not_match
    if wanted is not None and not search(wanted, text):
        yield Failure("pattern", "no_match", "answer", f"nothing matches {shown(wanted)}")
    if unwanted is not None and (found := search(unwanted, text)):
        message = f"{shown(found.group())} matches {shown(unwanted)}"
        yield Failure("pattern", "forbidden_match", place_of(text, found.start()), message)


pattern = Check("pattern", ExpectedPattern, _pattern)
