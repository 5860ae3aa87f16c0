"""The form of prose: bullet points, the first word, language, length, sentences, words that must be there or not."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.canaries.checks._base import Check, Decision, Expected, Failure, Tools, place_of, shown, text_code
from q36eval.canaries.checks._language import language_failures
from q36eval.canaries.checks._prose import DASHES, Bullet, Piece, all_bullets, bullets, first_word, sentences, words


class Style(BaseModel):
    """What is asked of the form; what is None is not asked.

    bullets: exactly so many bullet points on the outermost level; with others within them nobody can tell.
    bullet: the marks they may have, `any` (`-`, `*`, `•`) or `dash` (`-`, `–`, `—`, with a space after it or without).
    first_word: the first word, case and all; emphasis and quotes before it are looked through.
    colon: one follows the first word, emphasis and quotes aside.
    language: every sentence is in it (`canaries.checks._language` states the rule).
    max_words: no more words than this. sentences: exactly so many.
    contains: words, or several in a row, that must stand there in exactly this form.
    lacks: words that must not, in whatever case they are written. Both are whole words.
    mentions: names that must come, in any of their grammatical forms.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bullets: Annotated[int, Field(ge=0)] | None = None
    bullet: Literal["any", "dash"] = "any"
    first_word: Annotated[str, Field(pattern=r"^\S+$")] | None = None
    colon: bool = False
    language: Literal["cs", "en"] | None = None
    max_words: Annotated[int, Field(ge=1)] | None = None
    sentences: Annotated[int, Field(ge=1)] | None = None
    contains: list[Annotated[str, Field(min_length=1)]] = []
    lacks: list[Annotated[str, Field(min_length=1)]] = []
    mentions: list[Annotated[str, Field(min_length=2)]] = []

    @model_validator(mode="after")
    def _asks_something(self) -> "Style":
        asked = self.model_dump(exclude={"bullet", "colon"})
        if not any(value not in (None, []) for value in asked.values()):
            raise ValueError(f"asks nothing; give one of {', '.join(asked)}")
        if self.colon and self.first_word is None:
            raise ValueError("colon: name the first_word that it follows")
        return self


class ExpectedStyle(Expected):
    """`style`: what is asked of the form."""

    style: Style


def _style(text: str, expected: ExpectedStyle, tools: Tools) -> Iterator[Failure]:
    style = expected.style
    if not text.strip():
        yield Failure("style", "empty", "answer", "there is no text")
        return
    if style.bullets is not None:
        yield from _bullet_failures(text, style.bullets, style.bullet)
    if style.first_word is not None:
        yield from _first_word_failures(text, style.first_word, colon=style.colon)
    if style.language is not None:
        yield from language_failures("style", text, style.language)
    if style.max_words is not None:
        yield from _word_failures(text, style.max_words)
    if style.sentences is not None:
        yield from _sentence_failures(text, style.sentences)
    yield from _content_failures(text, style)


def _marks(text: str, kind: Literal["any", "dash"]) -> list[Piece]:
    """The marks of the bullet points of the outermost level."""
    return [point.mark for point in all_bullets(text) if not point.inner] if kind == "dash" else bullets(text)


def _bullet_failures(text: str, wanted: int, kind: Literal["any", "dash"]) -> Iterator[Failure]:
    found, points = _marks(text, kind), all_bullets(text)
    inner = [point for point in points if point.inner]
    if len(found) != wanted and len(points) != wanted:
        place = place_of(text, found[wanted].start) if len(found) > wanted else "answer"
        yield Failure("style", "wrong_bullets", place, f"{len(found)} bullet points instead of {wanted}")
    elif inner and wanted:
        message = f"{len(found)} bullet points with {len(inner)} within them: are these {wanted}?"
        yield Failure("style", "inner_bullets", place_of(text, inner[0].mark.start), message, unreadable=True)
    elif len(found) != wanted:
        yield Failure("style", "wrong_bullets", "answer", f"{len(found)} bullet points instead of {wanted}")
    for mark in found:
        if kind == "dash" and text[mark.start] not in DASHES:
            message = f"{shown(text[mark.start])} begins a point, not a dash"
            yield Failure("style", "wrong_bullet_mark", place_of(text, mark.start), message)
            break
    if wanted > 1:
        yield from _filler_failures(text, points)


_FILLER_WORDS = """bod body bodu odrážka odrážky odrážku odrážce položka položky položku bla blabla foo bar abc
    krok tip rada číslo text obsah zde tady je to toto tento tato další nějaký nějaká něco
    jedna dva dvě tři čtyři pět šest sedm první druhý druhá druhé třetí čtvrtý čtvrtá pátý pátá
    šestý šestá sedmý sedmá osmá poslední a i se bullet point item step placeholder number one
    two three four five six seven first second third fourth fifth sixth seventh last next here
    is this lorem ipsum dolor sit amet doplnit xxx tbd"""
"""Words of a point that says nothing."""

_FILLER = frozenset(_FILLER_WORDS.split())


def _filler_failures(text: str, points: list[Bullet]) -> Iterator[Failure]:
    """Points that say nothing, or what another one said."""
    seen: set[tuple[str, ...]] = set()
    for _, piece, _ in points:
        words = (word.lower() for word in _WORD.findall(text[piece.start : piece.end]))
        said = tuple(word for word in words if word not in _FILLER and not word.isdigit() and len(word) > 1)
        place = place_of(text, piece.start)
        if not said:
            yield Failure("style", "empty_bullet", place, f"{shown(text[piece.start : piece.end])} says nothing")
        elif said in seen:
            yield Failure("style", "repeated_bullet", place, f"{shown(text[piece.start : piece.end])} comes twice")
        seen.add(said)


def _first_word_failures(text: str, wanted: str, *, colon: bool) -> Iterator[Failure]:
    word = first_word(text)
    said = "" if word is None else text[word.start : word.end]
    if said != wanted:
        code = text_code(said, wanted, "wrong_first_word")
        place = place_of(text, len(text) - len(text.lstrip()) if word is None else word.start)
        yield Failure("style", code, place, f"begins with {shown(said or text.strip())}, not {shown(wanted)}")
    elif colon and word is not None and not _COLON.match(text, word.end):
        after = shown(text[word.end : word.end + 20])
        yield Failure("style", "missing_colon", place_of(text, word.end), f"{after} follows the first word, no colon")


def _word_failures(text: str, most: int) -> Iterator[Failure]:
    found = list(words(text))
    if len(found) > most:
        place = f"word {most + 1}, {place_of(text, found[most].start)}"
        yield Failure("style", "too_many_words", place, f"{len(found)} words instead of at most {most}")


def _sentence_failures(text: str, wanted: int) -> Iterator[Failure]:
    found = sentences(text)
    if len(found) != wanted:
        place = place_of(text, found[wanted].start) if len(found) > wanted else "end"
        yield Failure("style", "wrong_sentences", place, f"{len(found)} sentences instead of {wanted}")


def _content_failures(text: str, style: Style) -> Iterator[Failure]:
    for wanted in style.contains:
        if _whole_word(wanted).search(text):
            continue
        begins = _whole_word(wanted[:1].upper() + wanted[1:]).search(text)
        if begins is not None and _begins_sentence(text, begins.start()):
            message = f"{shown(wanted)} is there as {shown(begins.group())} only: is that this form?"
            yield Failure("style", "capital_only", place_of(text, begins.start()), message, unreadable=True)
        else:
            yield Failure("style", "missing_text", "answer", f"{shown(wanted)} is not there")
    for unwanted in style.lacks:
        found = _whole_word(unwanted, re.IGNORECASE).search(text)
        if found is not None:
            yield Failure("style", "unwanted_text", place_of(text, found.start()), f"{shown(found.group())} is there")
    for name in style.mentions:
        if not _mentioned(text, name):
            yield Failure("style", "missing_name", "answer", f"{shown(name)} does not come in any form")


_COLON = re.compile(r"[*_\"'“”‘’»«`]{0,4}[ \u00a0]?:")
_WORD = re.compile(r"[^\W_]+")
_BEFORE_SENTENCE = re.compile(r"(?:\A|\n|[.!?…:][\"'“”‘’)*_]*[ \t])[ \t]*[-*•–—>#\d.) \t\"'„“‚*_]*\Z")


def _whole_word(words: str, flags: int = 0) -> re.Pattern[str]:
    """`words` where they are no part of longer ones, however the space between them is written."""
    return re.compile(rf"(?<![^\W_])(?<![^\W_]-){_spaced(words)}(?!-?[^\W_])", flags)


def _spaced(words: str) -> str:
    return r"\s{1,9}".join(map(re.escape, words.split()))


def _begins_sentence(text: str, at: int) -> bool:
    return _BEFORE_SENTENCE.search(text[max(0, at - 40) : at] if at > 40 else text[:at]) is not None


def _mentioned(text: str, name: str) -> bool:
    """Whether a name comes in some form: each of its words by its beginning, which declension leaves alone."""
    beginnings = [_without_marks(word)[: max(3, len(word) - 2)] for word in name.split()]
    longest = [len(word) + 4 for word in name.split()]
    said = [(word, _without_marks(word)) for word in _WORD.findall(text)]
    return any(
        all(
            said[at + index][1].startswith(beginning) and len(said[at + index][0]) <= longest[index]
            for index, beginning in enumerate(beginnings)
        )
        for at in range(len(said) - len(beginnings) + 1)
        if said[at][0][:1].isupper()
    )


def _without_marks(word: str) -> str:
    """In small letters and without diacritics, which declension changes."""
    parted = unicodedata.normalize("NFD", word.casefold())
    return "".join(letter for letter in parted if not unicodedata.combining(letter))


def _decide_style(text: str, expected: ExpectedStyle, tools: Tools) -> list[Decision]:
    """The first word, the mark of every bullet point, and the texts that had to be there."""
    style, found = expected.style, []
    word = first_word(text) if style.first_word is not None else None
    if word is not None:
        found.append(Decision("style", word.start, word.end))
    if style.bullets is not None:
        found += [Decision("style", mark.start, mark.start + 1) for mark in _marks(text, style.bullet)]
    for wanted in style.contains:
        match = _whole_word(wanted).search(text)
        if match is not None:
            found.append(Decision("style", *match.span()))
    return found


style = Check("style", ExpectedStyle, _style, _decide_style)
