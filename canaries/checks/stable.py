"""Long free answers: loops, letters of other scripts, broken characters, length, the model's own marks."""

import re
from collections.abc import Iterator
from typing import Annotated

import regex
from pydantic import BaseModel, ConfigDict, Field, model_validator

from canaries.checks._base import Check, Expected, Failure, Tools, place_of, shown
from canaries.checks._loops import first_loop


class Stable(BaseModel):
    """scripts: Unicode scripts whose letters may come (`Latin`). The lengths are in characters, white space around the
    answer aside."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    scripts: Annotated[list[str], Field(min_length=1)]
    max_characters: Annotated[int, Field(ge=1)]
    min_characters: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _consistent(self) -> "Stable":
        if self.min_characters > self.max_characters:
            raise ValueError("min_characters is above max_characters")
        for script in self.scripts:
            try:
                _foreign((script,))
            except regex.error as error:
                raise ValueError(f"there is no Unicode script {shown(script)}") from error
        return self


class ExpectedStable(Expected):
    """`stable`: what a sane answer looks like, whatever it says."""

    stable: Stable


_BROKEN = re.compile(r"[\ufffd\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_MOJIBAKE = re.compile(r"[ÃÄÅÂĂĹ][\u00a0-\u00bf€‚ƒ„…†‡ˆ‰‹Ž‘’“”•–—˜™š›œžŸ]")
"""UTF-8 read as Windows-1252 or 1250: two such pairs are no accident."""

_SPECIAL = re.compile(r"<\|[A-Za-z_]{1,40}\|>|</?think>|</?tool_(?:call|response)>")


def _foreign(scripts: tuple[str, ...]) -> "regex.Pattern[str]":
    """Letters of no script in `scripts`."""
    for script in scripts:
        if not re.fullmatch(r"[A-Za-z_]{1,40}", script):
            raise regex.error(f"{script!r} is no name")
    known = "".join(rf"\p{{Script={script}}}" for script in scripts)
    return regex.compile(rf"[\p{{L}}--[{known}\p{{Script=Common}}\p{{Script=Inherited}}]]", regex.V1)


def _stable(text: str, expected: ExpectedStable, tools: Tools) -> Iterator[Failure]:
    yield from _length_failures(text, expected.stable)
    for pattern, code, message in (
        (_BROKEN, "broken_character", "no text holds"),
        (_SPECIAL, "special_token", "a mark of the chat template stands in the answer:"),
    ):
        found = pattern.search(text)
        if found:
            yield Failure("stable", code, place_of(text, found.start()), f"{message} {shown(found.group())}")
    yield from _mojibake_failures(text)
    foreign = _foreign(tuple(expected.stable.scripts)).search(text)
    if foreign:
        wanted = ", ".join(expected.stable.scripts)
        message = f"{shown(text[foreign.start() : foreign.start() + 20])} is not {wanted}"
        yield Failure("stable", "script_switch", place_of(text, foreign.start()), message)
    loop = first_loop(text)
    if loop is not None:
        at, said = loop
        yield Failure("stable", "repetition", place_of(text, at), f"goes round in {shown(said)}")


def _length_failures(text: str, stable: Stable) -> Iterator[Failure]:
    said = text.strip()
    if len(said) < stable.min_characters:
        message = f"{len(said)} characters, at least {stable.min_characters} are wanted"
        yield Failure("stable", "too_short", "end", message)
    if len(said) > stable.max_characters:
        message = f"{len(said)} characters, at most {stable.max_characters} are wanted"
        place = place_of(text, len(text) - len(text.lstrip()) + stable.max_characters)
        yield Failure("stable", "too_long", place, message)


def _mojibake_failures(text: str) -> Iterator[Failure]:
    pairs = _MOJIBAKE.finditer(text)
    first, second = next(pairs, None), next(pairs, None)
    if first is not None and second is not None:
        message = f"{shown(first.group())} is UTF-8 read as another encoding"
        yield Failure("stable", "broken_character", place_of(text, first.start()), message)


stable = Check("stable", ExpectedStable, _stable)
