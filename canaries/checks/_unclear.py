"""What an answer leaves open by its own words: two prices for one shop, an order that may be another, "or rather the
other way round". Two careful readers would disagree about it, whatever the numbers are."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from q36eval.canaries.checks._clauses import sentences_of
from q36eval.canaries.checks._lexicon import Meaning, word_set
from q36eval.canaries.checks._tokens import Kind, Token


class Unclear(NamedTuple):
    """A line, the word that makes it unclear, and what cannot be told."""

    line: int
    token: Token
    what: str


_EITHER = word_set("popř popřípadě případně resp respektive eventuálně nebo anebo či")
_REVERSED = word_set("obráceně opačně naopak")
_ELSEWHERE = word_set("jinam jinde")
_REPLACES = word_set("má měl mělo měla")


def unclear_places(lines: Sequence[Sequence[Token]]) -> Iterator[Unclear]:
    """Every place whose own words leave open what is meant."""
    for number, line in enumerate(lines):
        for sentence in sentences_of(line):
            found = _unclear(sentence)
            if found is not None:
                yield Unclear(number, *found)


def _unclear(sentence: Sequence[Token]) -> tuple[Token, str] | None:
    words = [token.lower for token in sentence]
    named = any(token.shop for token in sentence)
    for at, token in enumerate(sentence):
        before = words[max(0, at - 3) : at]
        if token.lower in _EITHER and _between_prices(sentence, at):
            return token, "two prices are named for one shop"
        if token.lower in ("pořadí", "sledu") and {"opačném", "obráceném", "nutně", "jiném", "případně"} & set(before):
            return token, "the order of the shops is left open"
        if token.lower in _REVERSED and (not named or "být" in before) and not _says(sentence):
            return token, "what is the other way round cannot be told"
        if token.lower in ("opačném", "jiném") and words[at + 1 : at + 2] == ["případě"]:
            return token, "the conclusion depends on what is not known"
        if token.lower in _ELSEWHERE and any(word.startswith("patř") for word in before):
            return token, "where an amount belongs cannot be told"
        if token.lower == "toho" and words[at + 1 : at + 4] == [",", "jak", "obchod"]:
            return token, "what applies is left open"
        if token.lower == "i" and words[at + 1 : at + 3] == ["bez", "ní"]:
            return token, "whether the discount applies is left open"
        if token.word.means(Meaning.CORRECTION) and not named and _replaces_a_number(sentence[at:]):
            return token, "which amount is corrected cannot be told"
    return None


def _between_prices(sentence: Sequence[Token], at: int) -> bool:
    """ "525 Kč, popř. 750 Kč": other amounts of money with nothing but signs between."""
    before = [token for token in sentence[max(0, at - 3) : at] if token.kind is not Kind.CURRENCY]
    after = [token for token in sentence[at + 1 : at + 4] if token.kind is not Kind.CURRENCY]
    while before and before[-1].kind in (Kind.BREAK, Kind.OTHER, Kind.OPEN):
        before.pop()
    while after and (after[0].kind in (Kind.BREAK, Kind.OTHER) or after[0].lower in ("jen", "až", "i")):
        after.pop(0)
    if not before or not after:
        return False
    one, other = before[-1], after[0]
    return one.is_money and other.is_money and bool(one.unit and other.unit) and one.value != other.value


def _says(sentence: Sequence[Token]) -> bool:
    return any(token.word.means(Meaning.GOOD, Meaning.BAD) for token in sentence)


def _replaces_a_number(tokens: Sequence[Token]) -> bool:
    """ "má tam být 3 290 Kč, ne 3 275 Kč"."""
    numbers = [token for token in tokens if token.is_money]
    denied = any(one.lower in ("ne", "nikoli", "nikoliv", "místo") for one in tokens)
    return len(numbers) > 1 and denied and any(token.lower in _REPLACES for token in tokens)
