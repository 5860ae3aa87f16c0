"""Which language prose is in, by a rule that fits in a head.

A word speaks for a language when it is one of its function words, or holds a letter that, of the languages known here,
only it has. A sentence is in the language that most of its speaking words speak for; it takes two such words, and more
than the wanted language has, to call a sentence foreign. Words that two of the languages share speak for none.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from canaries.checks._prose import Piece, sentences

Language = Literal["cs", "en"]

FUNCTION_WORDS = {
    "cs": """je jsou byl byla bylo byli být se si že ale nebo ani aby když kdy pokud protože proto tak také jako jak už
        ještě jen pouze ve ze ke ku pro při podle mezi přes před pod nad bez od po za by který která které kteří kterou
        kterého tento tato toto tyto tím tom tohoto této těchto jeho její jejich můj naše vaše co kdo kde
        proč není nejsou má mají může mohou musí lze bude budou než však tedy například velmi více méně nejen""",
    "en": """the and of is are was were be been has have had it its this that these those with for from at as or by
        not but if then than which who what when where why how can could will would should may might must you your we
        our they their he she his her into about over under between because also very more most such there here""",
    "sk": """sú bol bola bolo boli byť sa že ale alebo ani aby keď kedy ak pretože preto tak tiež ako ešte len iba vo
        zo pre pri podľa medzi cez pred ktorý ktorá ktoré ktorí ktorú ktorého táto toto tieto čo kto kde prečo nie má
        majú môže môžu musí možno budú však teda napríklad veľmi viac menej aj""",
    "pl": """jest są był była było byli być się że ale lub albo ani żeby gdy kiedy jeśli ponieważ dlatego tak też jak
        już jeszcze tylko we ze dla przy według między przez przed który która które którzy którą tego ten ta co kto
        gdzie dlaczego nie ma mają może mogą musi można będzie będą jednak więc bardzo więcej oraz""",
    "de": """der die das den dem des ein eine einen einem einer ist sind war waren sein und oder aber nicht auch auf
        mit für von zu zum zur bei nach aus im ins als wie wenn weil dass kann können wird werden hat haben sie wir ihr
        ich es sich nur noch sehr mehr über unter zwischen""",
}  # fmt: skip
OWN_LETTERS = {"cs": "ěřů", "sk": "ľĺŕô", "pl": "ąćęłńśźż", "de": "ß", "en": ""}
"""Letters that no other language of this table writes (é, í, š, ü and the like are shared)."""

MIN_FOREIGN_WORDS = 2
_SETS = {language: frozenset(listed.split()) for language, listed in FUNCTION_WORDS.items()}
_SPEAKS_FOR = {
    word: language
    for language, known in _SETS.items()
    for word in known
    if not any(word in others for other, others in _SETS.items() if other != language)
}
_OWNERS = {letter: language for language, letters in OWN_LETTERS.items() for letter in letters}
_LETTERS = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{0,300}`|https?://\S+|„[^“”\n]{0,300}[“”]|\"[^\"\n]{0,300}\"", re.DOTALL)


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


def foreign_sentences(text: str, wanted: Language) -> Iterator[Foreign]:
    """The sentences in another language than `wanted`; code, addresses and quotations do not count."""
    prose = _CODE.sub(lambda match: " " * len(match.group()), text)
    for piece in sentences(prose):
        found = counts(prose[piece.start : piece.end])
        language = max(found, key=lambda name: found[name])
        if found[language] >= MIN_FOREIGN_WORDS and found[language] > found[wanted]:
            yield Foreign(piece, language)
