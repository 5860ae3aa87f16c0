"""Free answers: loops, other scripts and languages, broken characters, length, the model's own marks, the end."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.canaries.checks._base import Check, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks._ending import breaks_off
from q36eval.canaries.checks._language import language_failures
from q36eval.canaries.checks._loops import first_loop
from q36eval.canaries.checks._scripts import first_foreign, scripts_exist


class Stable(BaseModel):
    """scripts: Unicode scripts whose letters may come (`Latin`). The lengths are in characters, white space around the
    answer aside.

    language: every sentence is in it (`canaries.checks._language` states the rule). headings: whether they may come, as
    Markdown or as a line of their own. finished: the text must not break off (`canaries.checks._ending`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    scripts: Annotated[list[str], Field(min_length=1)]
    max_characters: Annotated[int, Field(ge=1)]
    min_characters: Annotated[int, Field(ge=0)]
    language: Literal["cs", "en"] | None = None
    headings: bool = True
    finished: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "Stable":
        if self.min_characters > self.max_characters:
            raise ValueError("min_characters is above max_characters")
        scripts_exist(self.scripts)
        return self


class ExpectedStable(Expected):
    """`stable`: what a sane answer looks like, whatever it says."""

    stable: Stable


_BROKEN = re.compile(r"[\ufffd\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_MOJIBAKE = re.compile(r"[ÃÄÅÂĂĹ][\u00a0-\u00bf€‚ƒ„…†‡ˆ‰‹Ž‘’“”•–—˜™š›œžŸ]")
"""UTF-8 read as Windows-1252 or 1250: two such pairs are no accident."""

_SPECIAL = re.compile(r"<\|[A-Za-z_]{1,40}\|>|</?think>|</?tool_(?:call|response)>")


_CAPITALS = "A-ZÁČĎÉĚÍŇÓŘŠŤÚŮÝŽ"
_HEADING = re.compile(
    rf"^ {{0,3}}(?:#{{1,6}}[ \t]+\S.*|<h[1-6]>.*|[{_CAPITALS}][{_CAPITALS} ]{{3,59}}:?[ \t]*"
    r"|[^\n]{1,80}\n {0,3}(?:={3,}|-{3,})[ \t]*)$",
    re.MULTILINE,
)
_BOLD = re.compile(r"^ {0,3}(?:\*{2,3}|__)(?P<line>[^*_\n]{1,80})(?:\*{2,3}|__)[ \t]*:?[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"(?:\A|\n[ \t]*\n)[ \t]*(?P<line>[^\W\d_][^\n.!?…,:;\d„“\"]{2,60})[ \t]*(?=\n[ \t]*\n[ \t]*\S)")
"""A short line of its own before a paragraph, without a mark at its end."""

MOST_TITLE_WORDS = 8
MOST_NAME_WORDS = 2
_PARAGRAPH = re.compile(r"(?![*_]*\()(?!P\. ?S\.|PS\b)\S+\s[^\n]*[.!?…]")
"""What follows a heading is said in sentences; a letter's name, a postscript or a count of words below it is not."""

_SALUTES = re.compile(
    r"(?:ahoj|čau|nazdar|mil[ýáíé]|drah[ýáíé]|vážen|dobrý den|zdravím|(?:hezký|krásný|pěkný) |dear|hi|hello"
    r"|good (?:morning|day|evening))(?!\w{4})",
    re.IGNORECASE,
)


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
    foreign = first_foreign(text, expected.stable.scripts)
    if foreign is not None:
        message = f"{shown(text[foreign : foreign + 20])} is not {', '.join(expected.stable.scripts)}"
        yield Failure("stable", "script_switch", place_of(text, foreign), message)
    if expected.stable.language is not None:
        yield from language_failures("stable", text, expected.stable.language)
    if not expected.stable.headings:
        yield from _heading_failures(text)
    ends = breaks_off(text) if expected.stable.finished else None
    if ends is not None:
        yield Failure("stable", "unfinished", "end", f"breaks off after {shown(ends)}")
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


def _heading_failures(text: str) -> Iterator[Failure]:
    marked = ((match.start(), match.group().strip()) for match in _HEADING.finditer(text))
    found = next(marked, None) or next(_titles(text), None)
    if found is not None:
        at, said = found
        yield Failure("stable", "heading", place_of(text, at), f"a heading: {shown(said)}")


def _titles(text: str) -> Iterator[tuple[int, str]]:
    """Lines of their own that a paragraph follows; no salutation or closing of a letter, and no speaker's name."""
    bold = [match for match in _BOLD.finditer(text) if match["line"].strip()]
    lines = [*bold, *(match for match in _TITLE.finditer(text) if len(match["line"].split()) <= MOST_TITLE_WORDS)]
    speakers = Counter(match["line"].strip(" :") for match in bold if ":" in match.group())
    dialogue = max(speakers.values(), default=0) > 1
    for match in sorted(lines, key=lambda match: match.start("line")):
        said = match["line"].strip()
        follows = _PARAGRAPH.match(text[match.end() :].lstrip())
        speaks = dialogue and ":" in match.group() and len(said.split()) <= MOST_NAME_WORDS
        letter = match.re is _TITLE and not text[: match.start("line")].strip() and _SALUTES.match(said)
        if follows and not speaks and not letter:
            yield match.start() if match in bold else match.start("line"), said


def _mojibake_failures(text: str) -> Iterator[Failure]:
    pairs = _MOJIBAKE.finditer(text)
    first, second = next(pairs, None), next(pairs, None)
    if first is not None and second is not None:
        message = f"{shown(first.group())} is UTF-8 read as another encoding"
        yield Failure("stable", "broken_character", place_of(text, first.start()), message)


stable = Check("stable", ExpectedStable, _stable)
