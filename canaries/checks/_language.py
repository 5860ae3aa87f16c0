"""Which language prose is in, by a rule that fits in a head.

A word speaks for a language when it is one of its function words, or holds a letter that, of the languages known here,
only it has. A sentence is in the language that most of its speaking words speak for; it takes two such words, and more
than the wanted language has, to call a sentence foreign. Words that two of the languages share speak for none.

Short sentences often hold no such word. Of them the groups of three letters speak: how much likelier another language
makes them than the wanted one does, by the common words of both (a naive Bayes classifier over trigrams; Dunning 1994,
"Statistical identification of language"). It takes much to call a sentence foreign by that, for names are foreign too.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from q36eval.canaries.checks._base import Failure, place_of, shown
from q36eval.canaries.checks._language_words import COMMON_WORDS
from q36eval.canaries.checks._prose import Piece, sentences, words

Language = Literal["cs", "en"]

FUNCTION_WORDS = {
    "cs": """je jsou byl byla bylo byli být se si že ale nebo ani aby když kdy pokud protože proto tak také jako jak už
        ještě jen pouze ve ze ke ku pro při podle mezi přes před pod nad bez od po za by který která které kteří kterou
        kterého tento tato toto tyto tím tom tohoto této těchto jeho její jejich můj naše vaše co kdo kde
        proč není nejsou má mají může mohou musí lze bude budou než však tedy například velmi více méně nejen""",
    "en": """the and of is are was were be been has have had it its this that these those with for from at as or by
        not but if then than which who what when where why how can could will would should may might must you your we
        our they their he she his her into about over under between because also very more most such there here""",
    "sk": """je si by má nad pod bez od po za ku nie či sú bol bola bolo boli byť sa že ale alebo ani aby keď kedy ak
        pretože preto tak tiež ako ešte len iba vo zo pre pri podľa medzi cez pred ktorý ktorá ktoré
        ktorí ktorú ktorého táto toto tieto čo kto kde prečo majú môže môžu musí možno budú však teda
        napríklad veľmi viac menej aj""",
    "pl": """jest są był była było byli być się że ale lub albo ani żeby gdy kiedy jeśli ponieważ dlatego tak też jak
        już jeszcze tylko we ze dla przy według między przez przed który która które którzy którą tego ten ta co kto
        gdzie dlaczego nie ma mają może mogą musi można będzie będą jednak więc bardzo więcej oraz""",
    "de": """der die das den dem des ein eine einen einem einer ist sind war waren sein und oder aber nicht auch auf
        mit für von zu zum zur bei nach aus im ins als wie wenn weil dass kann können wird werden hat haben sie wir ihr
        ich es sich nur noch sehr mehr über unter zwischen""",
}  # fmt: skip
OWN_LETTERS = {"cs": "ěřů", "sk": "ľĺŕô", "pl": "ąćęłńśźż", "de": "ß", "en": ""}
"""Letters that no other language of this table writes (é, í, š, ü and the like are shared)."""

MIN_WORDS_TO_TELL = 8
"""An answer of so many words must hold one that speaks for the wanted language, or its letters must."""

MIN_FOREIGN_WORDS = 2
MIN_WORDS_BY_LETTERS = 2
MIN_NATS_OTHERS, MIN_NATS = 15.0, {("cs", "sk"): 10.0}
"""That the letters must speak for another language; a Slovak sentence shares most of its own with a Czech one."""

NATS_OF_A_WORD = 6.0
"""What a word that speaks for the wanted language weighs against that, and one for the other in favour."""

MAX_LETTERS = 2_000
"""Of a sentence that are looked at."""

SMOOTHING = 0.1
"""Added to every count."""

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
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|\\[A-Za-z]{2,20}|`[^`\n]{0,300}`|https?://\S+|„[^“”\n]{0,300}[“”]|\"[^\"\n]{0,300}\"",
    re.DOTALL,
)


class Foreign(NamedTuple):
    """A sentence in another language than the wanted one."""

    piece: Piece
    language: str


def spoken_for(word: str) -> str | None:
    """The language that a word speaks for, if any."""
    small = word.lower()
    if not small.isascii():
        own = next((_OWNERS[letter] for letter in small[:64] if letter in _OWNERS), None)
        if own is not None:
            return own
    return _SPEAKS_FOR.get(small)


def counts(text: str) -> dict[str, int]:
    """How many words of `text` speak for each language."""
    found = dict.fromkeys(FUNCTION_WORDS, 0)
    for match in _LETTERS.finditer(text):
        language = spoken_for(match.group())
        if language is not None:
            found[language] += 1
    return found


def language_failures(check: str, text: str, wanted: Language) -> Iterator[Failure]:
    """The sentences in another language, or that nothing tells the wanted one."""
    foreign = list(foreign_sentences(text, wanted))
    for piece, language in foreign:
        message = f"a sentence in {language}, not {wanted}: {shown(text[piece.start : piece.end])}"
        yield Failure(check, "wrong_language", place_of(text, piece.start), message)
    if foreign or counts(text)[wanted] or sum(1 for _ in words(text)) < MIN_WORDS_TO_TELL:
        return
    scores = _scores([match.group().lower() for match in _LETTERS.finditer(text[:MAX_LETTERS])])
    if max(scores, key=lambda language: scores[language]) != wanted:
        yield Failure(check, "unclear_language", "answer", f"no word speaks for {wanted}")


def foreign_sentences(text: str, wanted: Language) -> Iterator[Foreign]:
    """The sentences in another language than `wanted`; code, addresses and quotations do not count."""
    prose = _CODE.sub(lambda match: " " * len(match.group()), text)
    for piece in sentences(prose):
        sentence = prose[piece.start : piece.end]
        found = counts(sentence)
        language = max(found, key=lambda name: found[name])
        if found[language] >= MIN_FOREIGN_WORDS and found[language] > found[wanted]:
            yield Foreign(piece, language)
        else:
            by_letters = likelier_language(sentence, wanted, found)
            if by_letters is not None:
                yield Foreign(piece, by_letters)


def likelier_language(sentence: str, wanted: Language, speaking: dict[str, int]) -> str | None:
    """The language that makes the letters of a sentence much likelier than `wanted` does; None where none does.

    `speaking` are the words that speak for each language: the more for `wanted`, the more it takes.
    """
    said = [match.group().lower() for match in _LETTERS.finditer(sentence[:MAX_LETTERS])]
    said = [word for word in said if len(word) > 1]
    if len(said) < MIN_WORDS_BY_LETTERS:
        return None
    scores = _scores(said)
    language = max(scores, key=lambda name: scores[name])
    enough = MIN_NATS.get((wanted, language), MIN_NATS_OTHERS)
    enough += NATS_OF_A_WORD * (speaking[wanted] - speaking[language])
    return language if scores[language] - scores[wanted] > enough else None


def _scores(said: list[str]) -> dict[str, float]:
    """The log-likelihood of words in every language, in nats."""
    return {language: sum(map(model.log_likelihood, said)) for language, model in _models().items()}


class _Trigrams(NamedTuple):
    """How often groups of three letters occur in a language's common words, ends of words included."""

    three: Counter[str]
    two: Counter[str]

    def log_likelihood(self, word: str) -> float:
        """In nats: of each letter after the two before it, smoothed."""
        padded = f"  {word} "
        return sum(
            math.log((self.three[padded[at : at + 3]] + SMOOTHING) / (self.two[padded[at : at + 2]] + SMOOTHING * 40))
            for at in range(len(padded) - 2)
        )


@lru_cache(maxsize=1)
def _models() -> dict[str, _Trigrams]:
    found = {}
    for language, listed in COMMON_WORDS.items():
        padded = [f"  {word} " for word in dict.fromkeys(listed.split())]
        three = Counter(word[at : at + 3] for word in padded for at in range(len(word) - 2))
        two = Counter(word[at : at + 2] for word in padded for at in range(len(word) - 2))
        found[language] = _Trigrams(three, two)
    return found
