"""The language of prose.

A sentence is in the language of most of its function words; calling it foreign needs two such words, and more than the
wanted language has. Words shared by two languages do not count. If the words do not decide, lingua does: a naive Bayes
classifier over groups of one to five letters (https://github.com/pemistahl/lingua-rs). Its threshold for calling a
sentence foreign is high, because names are foreign, too.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from q36eval.canaries.checks.base import WORDS, Failure, place_of, shown
from q36eval.canaries.checks.prose import Piece, sentences, words

if TYPE_CHECKING:
    from lingua import LanguageDetector

Language = Literal["cs", "en"]

FUNCTION_WORDS: dict[str, str] = WORDS["function_words"]
OWN_LETTERS = {"cs": "ěřů", "sk": "ľĺŕô", "pl": "ąćęłńśźż", "de": "ß", "en": ""}
"""Letters that no other language of this table uses (é, í, š, ü and the like are shared)."""

MIN_WORDS_TO_TELL = 8
"""An answer with that many words must have a word or letters typical of the wanted language."""

MIN_FOREIGN_WORDS = 2
MIN_WORDS_BY_LETTERS = 2
MIN_CONFIDENCE = 0.2
"""A sentence for which lingua gives the wanted language less than this is foreign. Of the 4,263 sentences of the
labelled answers, every foreign one that the words do not decide is below 0.2, and every other one is above 0.25."""

MAX_LETTERS = 2_000
"""Characters of a text that are evaluated."""

_SETS = {language: frozenset(listed.split()) for language, listed in FUNCTION_WORDS.items()}
_SPEAKS_FOR = {
    word: language
    for language, known in _SETS.items()
    for word in known
    if not any(word in others for other, others in _SETS.items() if other != language)
}
_OWNERS = {letter: language for language, letters in OWN_LETTERS.items() for letter in letters}
_LETTERS = re.compile(r"[^\W\d_]+")
_CODE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|\\(?:begin|end)(?:\{[^{}\n]{0,20}\}){1,2}|\\[A-Za-z]{2,20}|`[^`\n]{0,300}`"
    r"|https?://\S+|<[^<>\n]{1,80}>|„[^“”\n]{0,300}[“”]|\"[^\"\n]{0,300}\"",
    re.DOTALL,
)


class Foreign(NamedTuple):
    """A sentence in another language than the wanted one."""

    piece: Piece
    language: str


def spoken_for(word: str) -> str | None:
    """The language that a word indicates, if any."""
    small = word.lower()
    if not small.isascii():
        own = next((_OWNERS[letter] for letter in small[:64] if letter in _OWNERS), None)
        if own is not None:
            return own
    return _SPEAKS_FOR.get(small)


def counts(text: str) -> dict[str, int]:
    """The number of words of `text` that indicate each language."""
    speaking = dict.fromkeys(FUNCTION_WORDS, 0)
    for match in _LETTERS.finditer(text):
        language = spoken_for(match.group())
        if language is not None:
            speaking[language] += 1
    return speaking


def language_failures(check: str, text: str, wanted: Language) -> Iterator[Failure]:
    """The sentences in another language, or the failure that nothing indicates the wanted one."""
    foreign = list(foreign_sentences(text, wanted))
    for piece, language in foreign:
        message = f"a sentence in {language}, not {wanted}: {shown(text[piece.start : piece.end])}"
        yield Failure(check, "wrong_language", place_of(text, piece.start), message)
    if foreign or counts(text)[wanted] or sum(1 for _ in words(text)) < MIN_WORDS_TO_TELL:
        return
    confidences = _confidences(text)
    if max(confidences, key=lambda language: confidences[language]) != wanted or confidences[wanted] < MIN_CONFIDENCE:
        yield Failure(check, "unclear_language", "answer", f"no word speaks for {wanted}")


def foreign_sentences(text: str, wanted: Language) -> Iterator[Foreign]:
    """The sentences in another language than `wanted`; code, addresses and quotations do not count."""
    prose = _CODE.sub(lambda match: " " * len(match.group()), text)
    for piece in sentences(prose):
        sentence = prose[piece.start : piece.end]
        speaking = counts(sentence)
        language = max(speaking, key=lambda name: speaking[name])
        if speaking[language] >= MIN_FOREIGN_WORDS and speaking[language] > speaking[wanted]:
            yield Foreign(piece, language)
        elif sum(len(word) > 1 for word in _LETTERS.findall(sentence)) >= MIN_WORDS_BY_LETTERS:
            confidences = _confidences(sentence)
            likeliest = max(confidences, key=lambda name: confidences[name])
            if confidences[wanted] < MIN_CONFIDENCE <= confidences[likeliest]:
                yield Foreign(piece, likeliest)


def _confidences(text: str) -> dict[str, float]:
    """The probability of each language by the letters; 0 for all if the text has letters of none.

    Lingua does not treat ó, as in "sezóna", as Czech, and refuses lone surrogates.
    """
    known = text[:MAX_LETTERS].replace("ó", "o").replace("Ó", "O").encode(errors="replace").decode()
    values = _detector().compute_language_confidence_values(known)
    return {value.language.iso_code_639_1.name.lower(): value.value for value in values}


@lru_cache(maxsize=1)
def _detector() -> "LanguageDetector":
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, language.upper()) for language in FUNCTION_WORDS]
    return LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()
