"""What an amount is said to be: a list price, a discount, a price after it, a difference, a limit.

The words right after it say so, else those before it or before the sum that makes it.
"""

from collections.abc import Sequence
from enum import StrEnum

from q36eval.canaries.checks.price_reading.lexicon import Meaning, word_set
from q36eval.canaries.checks.price_reading.tokens import Kind, Token


class Role(StrEnum):
    """What an amount is said to be."""

    LIST_PRICE = "list price"
    DISCOUNT = "discount"
    COST = "price"
    """Before or after a discount."""
    AFTER = "price after a discount"
    FINAL = "final price"
    DIFFERENCE = "difference"
    SAVED = "saved"
    """Against the list price or against another shop."""
    LIMIT = "limit"
    OTHER = "other"


ENDS_CLAUSE = frozenset(",;|—")
_LOOK_BACK = 9


def role_of(line: Sequence[Token], at: int, number_at: int) -> Role:
    """What the words right after an amount, else those before it or its equation, say that it is."""
    after = _role_after(line, number_at)
    if after is not None:
        return after
    between = depth = 0
    for back in range(at - 1, max(-1, at - 1 - _LOOK_BACK), -1):
        token = line[back]
        depth += (token.kind is Kind.CLOSE) - (token.kind is Kind.OPEN)
        if depth < 0:
            return Role.OTHER
        if depth and token.is_money:
            return Role.OTHER  # "po odečtení 40 % (760 Kč) 1 140 Kč"
        if depth:
            continue
        if token.kind in (Kind.STOP, Kind.ARROW) or token.text in ENDS_CLAUSE or token.is_money:
            return Role.OTHER
        if token.kind is Kind.EQUALS and back != at - 1:
            return Role.OTHER
        role = _role_of_word(line, back, at, between)
        if role is not None:
            return Role.COST if role is Role.DISCOUNT and line[at - 1].lower == "na" else role
        between += token.kind is Kind.WORD
    return Role.OTHER


_INTENSIFIES = word_set("""jen pouhých pouhé pouze celých celou zhruba asi přesně přibližně rovných téměř dalších""")


_ASKS = ("řekn", "řekl", "jde", "jedná", "běží")
"""Verbs with "o" and an amount that is no difference: "řekne si o 1 140 Kč"."""


def _role_of_word(line: Sequence[Token], back: int, at: int, between: int) -> Role | None:
    token = line[back]
    word = token.word
    if token.lower == "o" and all(one.lower in _INTENSIFIES for one in line[back + 1 : at]):
        requests = any(one.lower.startswith(_ASKS) for one in line[max(0, back - 4) : back])
        return Role.OTHER if requests else Role.DIFFERENCE
    if token.lower in ("z", "ze", "od", "než", "místo") and between <= 2:
        return Role.OTHER
    if (token.lower in _LIMITING and between <= 1) or token.lower.startswith(_EXCEEDS):
        return Role.LIMIT
    if word.means(Meaning.DISCOUNT):
        return _role_of_discount(line, back, at)
    if word.means(Meaning.ORIGINAL) and any(one.word.means(Meaning.THAN) for one in line[max(0, back - 2) : back]):
        return Role.OTHER  # "oproti původní ceně": what it was, or what is saved
    for meaning, role in _ROLES.items():
        if word.means(meaning):
            return role
    if word.means(Meaning.COST):
        described = line[back - 1].word if back else None
        if described is not None and described.means(Meaning.FINAL, Meaning.ORIGINAL, Meaning.AFTER):
            return None
        return _role_of_price(line, back, at)
    return Role.COST if word.means(Meaning.PAY) and token.lower not in ("platí", "neplatí") else None


_LIMITING = word_set("nad pod do přes alespoň aspoň minimálně")
_EXCEEDS = (
    "přesah", "nepřesah", "přesáh", "nepřesáh", "překrač", "překroč", "nepřekr", "dosah", "nedosah", "dosáh",
    "nedosáh", "převyš", "nepřevyš", "převýš",
)  # fmt: skip
_ROLES = {
    Meaning.LIMIT: Role.LIMIT,
    Meaning.SAVE: Role.SAVED,
    Meaning.DIFFERENCE: Role.DIFFERENCE,
    Meaning.OVERPAY: Role.DIFFERENCE,
    Meaning.TAKE_OFF: Role.DISCOUNT,
    Meaning.ORIGINAL: Role.LIST_PRICE,
    Meaning.FINAL: Role.FINAL,
    Meaning.AFTER: Role.AFTER,
}


def _role_of_price(line: Sequence[Token], back: int, at: int) -> Role:
    following = [token.lower for token in line[back + 1 : at]]
    if "po" in following:
        return Role.AFTER
    return Role.LIST_PRICE if {"před", "bez"} & set(following) else Role.COST


def _role_of_discount(line: Sequence[Token], back: int, at: int) -> Role:
    """A discount, or the price after, before or without one."""
    before = [token.lower for token in line[max(0, back - 3) : back]]
    words = sum(token.kind is Kind.WORD and not token.word.means(Meaning.COPULA) for token in line[back + 1 : at])
    if "po" in before:
        named = not words and not any(token.word.means(Meaning.COPULA) for token in line[back + 1 : at])
        return Role.OTHER if named else Role.AFTER  # "po slevě 2 500 Kč" may be either
    if any(token.word.means(Meaning.LIMIT) for token in line[max(0, back - 2) : back]):
        return Role.OTHER
    if {"před", "bez"} & set(before):
        return Role.LIST_PRICE
    if any(token.word.means(Meaning.MET) or token.lower == "platí" for token in line[back + 1 : at]):
        return Role.OTHER
    if {"se", "s"} & set(before) and words:
        return Role.COST
    return Role.DISCOUNT


def _role_after(line: Sequence[Token], at: int) -> Role | None:
    following = [token for token in line[at + 1 : at + 4] if token.kind is not Kind.CURRENCY]
    if not following:
        return None
    if following[0].kind is Kind.OPEN:
        named = [*following[1:], *line[at + 4 : at + 5]]
        alone = len(named) > 1 and named[0].word.means(Meaning.DISCOUNT) and named[1].kind is Kind.CLOSE
        return Role.DISCOUNT if alone else None
    if any(token.lower == "od" for token in line[max(0, at - 2) : at]):
        return Role.OTHER
    first = following[0].word
    if first.means(Meaning.TAKE_OFF, Meaning.DISCOUNT):
        return Role.DISCOUNT
    if following[0].lower == "k" and len(following) > 1 and following[1].lower == "dobru":
        return Role.DIFFERENCE
    return None
