"""Free-form answers: their form (`style`) and their soundness (`stable`).

`style`: bullet points, the first word, language, length, sentences, required and forbidden words. `stable`: loops,
other scripts and languages, broken characters, length, the model's own marks, headings, the end.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.canaries.checks.base import WORDS, Check, Decision, Expected, Failure, Tools, place_of, shown, text_code
from q36eval.canaries.checks.language import language_failures
from q36eval.canaries.checks.prose import (
    DASHES,
    Bullet,
    breaks_off,
    bullets,
    first_foreign,
    first_loop,
    first_word,
    scripts_exist,
    sentences,
    words,
)


class Style(BaseModel):
    """The required form; None means no requirement.

    bullets: the exact number of bullet points on the outermost level; nested ones make it unreadable.
    bullet: the allowed marks, `any` (`-`, `*`, `•`) or `dash` (`-`, `–`, `—`, with a space after it or without).
    first_word: the first word, case-sensitive; emphasis and quotes before it are ignored.
    colon: one follows the first word, emphasis and quotes aside.
    language: the language of every sentence (`canaries.checks.language` states the rule).
    max_words: the maximum number of words.
    sentences: the exact number of sentences.
    contains: required words or phrases, in exactly this form.
    lacks: forbidden words, in any letter case. Like `contains`, they match whole words.
    mentions: required names, declined or, for a town, as its adjective.
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
        demands = self.model_dump(exclude={"bullet", "colon"})
        if not any(value not in (None, []) for value in demands.values()):
            raise ValueError(f"demands nothing; give one of {', '.join(demands)}")
        if self.colon and self.first_word is None:
            raise ValueError("colon: name the first_word that it follows")
        return self


class ExpectedStyle(Expected):
    """`style`: the required form."""

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


def _bullet_failures(text: str, wanted: int, kind: Literal["any", "dash"]) -> Iterator[Failure]:
    points = bullets(text)
    inner = [point for point in points if point.inner]
    marks = [point.mark for point in points if not point.inner]
    if wanted not in (len(marks), len(points)):
        place = place_of(text, marks[wanted].start) if len(marks) > wanted else "answer"
        yield Failure("style", "wrong_bullets", place, f"{len(marks)} bullet points instead of {wanted}")
    elif inner:
        message = f"{len(marks)} bullet points with {len(inner)} within them: are these {wanted}?"
        yield Failure("style", "inner_bullets", place_of(text, inner[0].mark.start), message, unreadable=True)
    for mark in marks:
        if kind == "dash" and text[mark.start] not in DASHES:
            message = f"{shown(text[mark.start])} begins a point, not a dash"
            yield Failure("style", "wrong_bullet_mark", place_of(text, mark.start), message)
            break
    if wanted > 1:
        yield from _filler_failures(text, points)


_FILLER = frozenset(WORDS["filler"].split())
"""Words of a bullet point without content."""


def _filler_failures(text: str, points: list[Bullet]) -> Iterator[Failure]:
    """Bullet points without content, or with repeated content."""
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
    counted = list(words(text))
    if len(counted) > most:
        place = f"word {most + 1}, {place_of(text, counted[most].start)}"
        yield Failure("style", "too_many_words", place, f"{len(counted)} words instead of at most {most}")


def _sentence_failures(text: str, wanted: int) -> Iterator[Failure]:
    counted = sentences(text)
    if len(counted) != wanted:
        place = place_of(text, counted[wanted].start) if len(counted) > wanted else "end"
        yield Failure("style", "wrong_sentences", place, f"{len(counted)} sentences instead of {wanted}")


def _content_failures(text: str, style: Style) -> Iterator[Failure]:
    for wanted in style.contains:
        if _whole_word(wanted).search(text):
            continue
        begins = _whole_word(wanted[:1].upper() + wanted[1:]).search(text)
        if begins is not None and _BEFORE_SENTENCE.search(text[max(0, begins.start() - 40) : begins.start()]):
            message = f"{shown(wanted)} is there as {shown(begins.group())} only: is that this form?"
            yield Failure("style", "capital_only", place_of(text, begins.start()), message, unreadable=True)
        else:
            yield Failure("style", "missing_text", "answer", f"{shown(wanted)} is not there")
    for unwanted in style.lacks:
        match = _whole_word(unwanted, re.IGNORECASE).search(text)
        if match is not None:
            yield Failure("style", "unwanted_text", place_of(text, match.start()), f"{shown(match.group())} is there")
    for name in style.mentions:
        if not _mentioned(text, name):
            yield Failure("style", "missing_name", "answer", f"{shown(name)} does not come in any form")


_COLON = re.compile(r"[*_\"'“”‘’»«`]{0,4}[ \u00a0]?:")
_WORD = re.compile(r"[^\W_]+")
_BEFORE_SENTENCE = re.compile(r"(?:\A|\n|[.!?…:][\"'“”‘’)*_]*[ \t])[ \t]*[-*•–—>#\d.) \t\"'„“‚*_]*\Z")


def _whole_word(words: str, flags: int = 0) -> re.Pattern[str]:
    """`words` as whole words, with any white space between them."""
    spaced = r"\s{1,9}".join(map(re.escape, words.split()))
    return re.compile(rf"(?<![^\W_])(?<![^\W_]-){spaced}(?!-?[^\W_])", flags)


_ADJECTIVE = r"(?:e[nc]|t)?(?:(?<=c)|[sc])k(?:y|a|e|eho|emu|em|ym|ych|ymi|ou|u|o)"
"""Endings of a town's adjective and of its region, without diacritics: "brněnských", "na Ústecku"."""

_ADJECTIVE_IN_NAME = ("ý", "á", "é", "ův")
_SOFTENED = str.maketrans("hkg", "zcz")
_ENDING_LETTERS = 6
_FLEETING_FROM = 5
"""Letters of a stem that can lose its last e: "písek, písku", but "Věra, Věry"."""


def _mentioned(text: str, name: str) -> bool:
    """Whether a name occurs in some form: declined, or as the adjective of a town ("v pražských ulicích")."""
    named, said = _WORD.findall(name), _WORD.findall(text)
    plain = [_without_marks(word) for word in said]
    forms = [re.compile(rf"(?:{_stems(word)})\w{{0,{_ENDING_LETTERS}}}") for word in named]
    for at in range(len(said) - len(named) + 1):
        if said[at][0].isupper() and all(form.fullmatch(plain[at + index]) for index, form in enumerate(forms)):
            return True
    adjective = _adjective(named)
    return any(adjective.fullmatch(word) for word in plain)


def _adjective(named: list[str]) -> re.Pattern[str]:
    """The adjective of a town: from its only word, or from a noun of several, alone or with the others before it."""
    nouns = [word for word in named if word[0].isupper() and not word.endswith(_ADJECTIVE_IN_NAME)]
    stems = "|".join(map(_stems, nouns or named[-1:]))
    compound = "|".join(_without_marks(word)[:4] for word in named)
    return re.compile(rf"(?:(?:{compound})\w{{0,8}})?(?:{stems}){_ADJECTIVE}")


def _stems(word: str) -> str:
    """The spellings of a name's stem before an ending, without diacritics: "prah" and "praz", "pisek" and "pisk"."""
    whole = _without_marks(word)
    stem = re.sub(r"(?:uv|[aeiouy]+)\Z", "", whole) or whole
    parted = {stem, re.sub(r"(?<=[^aeiouy])([nm])\Z", r"e\1", stem)}
    if len(stem) >= _FLEETING_FROM:
        parted.add(re.sub(r"e(?=[^aeiouy]\Z)", "", stem))
    return "|".join(sorted(parted | {one[:-1] + one[-1:].translate(_SOFTENED) for one in parted}))


def _without_marks(word: str) -> str:
    """In lower case and without diacritics, which declension changes."""
    parted = unicodedata.normalize("NFD", word.casefold())
    return "".join(letter for letter in parted if not unicodedata.combining(letter))


def _decide_style(text: str, expected: ExpectedStyle, tools: Tools) -> list[Decision]:
    """The first word, the mark of every bullet point, and the required texts."""
    style, decided = expected.style, []
    word = first_word(text) if style.first_word is not None else None
    if word is not None:
        decided.append(Decision("style", word.start, word.end))
    if style.bullets is not None:
        decided += [Decision("style", point.mark.start, point.mark.start + 1) for point in bullets(text)]
    for wanted in style.contains:
        match = _whole_word(wanted).search(text)
        if match is not None:
            decided.append(Decision("style", *match.span()))
    return decided


style = Check("style", ExpectedStyle, _style, _decide_style)


class Stable(BaseModel):
    """scripts: Unicode scripts whose letters may come (`Latin`). The lengths are in characters, white space around the
    answer aside.

    language: every sentence is in it (`canaries.checks.language` states the rule). headings: whether they may come, as
    Markdown or as a line of their own. finished: the text must not break off (`canaries.checks.prose`).
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
    """`stable`: the form of a sound answer of any content."""

    stable: Stable


_BROKEN = re.compile(r"[\ufffd\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_MOJIBAKE = re.compile(r"[ÃÄÅÂĂĹ][\u00a0-\u00bf€‚ƒ„…†‡ˆ‰‹Ž‘’“”•–—˜™š›œžŸ]")
"""UTF-8 read as Windows-1252 or 1250: two such pairs are not accidental."""

_SPECIAL = re.compile(r"<\|[A-Za-z_]{1,40}\|>|</?think>|</?tool_(?:call|response)>")


_CAPITALS = "A-ZÁČĎÉĚÍŇÓŘŠŤÚŮÝŽ"
_HEADING = re.compile(
    rf"^ {{0,3}}(?:#{{1,6}}[ \t]+\S.*|<h[1-6]>.*|[{_CAPITALS}][{_CAPITALS} ]{{3,59}}:?[ \t]*"
    r"|[^\n]{1,80}\n {0,3}(?:={3,}|-{3,})[ \t]*)$",
    re.MULTILINE,
)
_BOLD = re.compile(r"^ {0,3}(?:\*{2,3}|__)(?P<line>[^*_\n]{1,80})(?:\*{2,3}|__)[ \t]*:?[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"(?:\A|\n[ \t]*\n)[ \t]*(?P<line>[^\W\d_][^\n.!?…,:;\d„“\"]{2,60})[ \t]*(?=\n[ \t]*\n[ \t]*\S)")
"""A separate short line before a paragraph, without a final mark."""

MOST_TITLE_WORDS = 8
MOST_NAME_WORDS = 2
_PARAGRAPH = re.compile(r"(?![*_]*\()(?!P\. ?S\.|PS\b)\S+\s[^\n]*[.!?…]")
"""Sentences follow a heading; a letter's name, a postscript or a word count does not contain any."""

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
        match = pattern.search(text)
        if match:
            yield Failure("stable", code, place_of(text, match.start()), f"{message} {shown(match.group())}")
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
    heading = next(marked, None) or next(_titles(text), None)
    if heading is not None:
        at, said = heading
        yield Failure("stable", "heading", place_of(text, at), f"a heading: {shown(said)}")


def _titles(text: str) -> Iterator[tuple[int, str]]:
    """Separate lines followed by a paragraph; not a salutation or closing of a letter, nor a speaker's name."""
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
