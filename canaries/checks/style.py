"""The form of prose: bullet points, the first word, language, length, sentences, words that must be there or not."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from canaries.checks._base import Check, Decision, Expected, Failure, Tools, place_of, shown, text_code
from canaries.checks._language import counts, foreign_sentences
from canaries.checks._prose import bullets, first_word, sentences, words

MIN_WORDS_TO_TELL = 8
"""An answer of so many words must hold one that speaks for the wanted language."""


class Style(BaseModel):
    """What is asked of the form; what is None is not asked.

    bullets: exactly so many bullet points (`-`, `*`, `•`) on the outermost level.
    first_word: the first word, case and all; emphasis and quotes before it are looked through.
    language: every sentence is in it (`canaries.checks._language` states the rule).
    max_words: no more words than this. sentences: exactly so many.
    contains, lacks: texts that must, or must not, stand in the answer, letter by letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bullets: Annotated[int, Field(ge=0)] | None = None
    first_word: Annotated[str, Field(pattern=r"^\S+$")] | None = None
    language: Literal["cs", "en"] | None = None
    max_words: Annotated[int, Field(ge=1)] | None = None
    sentences: Annotated[int, Field(ge=1)] | None = None
    contains: list[Annotated[str, Field(min_length=1)]] = []
    lacks: list[Annotated[str, Field(min_length=1)]] = []

    @model_validator(mode="after")
    def _asks_something(self) -> "Style":
        if not any(value not in (None, []) for value in self.model_dump().values()):
            raise ValueError(f"asks nothing; give one of {', '.join(type(self).model_fields)}")
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
        yield from _bullet_failures(text, style.bullets)
    if style.first_word is not None:
        yield from _first_word_failures(text, style.first_word)
    if style.language is not None:
        yield from _language_failures(text, style.language)
    if style.max_words is not None:
        yield from _word_failures(text, style.max_words)
    if style.sentences is not None:
        yield from _sentence_failures(text, style.sentences)
    yield from _content_failures(text, style)


def _bullet_failures(text: str, wanted: int) -> Iterator[Failure]:
    found = bullets(text)
    if len(found) != wanted:
        place = place_of(text, found[wanted].start) if len(found) > wanted else "answer"
        yield Failure("style", "wrong_bullets", place, f"{len(found)} bullet points instead of {wanted}")


def _first_word_failures(text: str, wanted: str) -> Iterator[Failure]:
    word = first_word(text)
    said = "" if word is None else text[word.start : word.end]
    if said != wanted:
        code = text_code(said, wanted, "wrong_first_word")
        place = place_of(text, len(text) - len(text.lstrip()) if word is None else word.start)
        yield Failure("style", code, place, f"begins with {shown(said or text.strip())}, not {shown(wanted)}")


def _language_failures(text: str, wanted: Literal["cs", "en"]) -> Iterator[Failure]:
    foreign = list(foreign_sentences(text, wanted))
    for piece, language in foreign:
        message = f"a sentence in {language}, not {wanted}: {shown(text[piece.start : piece.end])}"
        yield Failure("style", "wrong_language", place_of(text, piece.start), message)
    if not foreign and not counts(text)[wanted] and sum(1 for _ in words(text)) >= MIN_WORDS_TO_TELL:
        yield Failure("style", "unclear_language", "answer", f"no word speaks for {wanted}")


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
        if wanted not in text:
            yield Failure("style", "missing_text", "answer", f"{shown(wanted)} is not there")
    for unwanted in style.lacks:
        at = text.find(unwanted)
        if at >= 0:
            yield Failure("style", "unwanted_text", place_of(text, at), f"{shown(unwanted)} is there")


def _decide_style(text: str, expected: ExpectedStyle, tools: Tools) -> list[Decision]:
    """The first word, the mark of every bullet point, and the texts that had to be there."""
    style, found = expected.style, []
    word = first_word(text) if style.first_word is not None else None
    if word is not None:
        found.append(Decision("style", word.start, word.end))
    if style.bullets is not None:
        found += [Decision("style", mark.start, mark.start + 1) for mark in bullets(text)]
    for wanted in style.contains:
        at = text.find(wanted)
        found.append(Decision("style", at, at + len(wanted)))
    return found


style = Check("style", ExpectedStyle, _style, _decide_style)
