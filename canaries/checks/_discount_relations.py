"""How amounts are said to relate to one another: percentages, shares ("a third"), "more than", "per cent (crowns)"."""

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction

from q36eval.canaries.checks._claims import Amount, Clause
from q36eval.canaries.checks._expressions import written_decimals
from q36eval.canaries.checks._lexicon import Meaning
from q36eval.canaries.checks._offers import Offer
from q36eval.canaries.checks._roles import Role
from q36eval.canaries.checks._tokens import PERCENT, Kind, Token

_TOLERATED = Fraction(12, 100)
"""How far a share that is called "about" may be off, relative to the true one."""
_SHARES = {
    "polovin": Fraction(1, 2), "třetin": Fraction(1, 3), "čtvrtin": Fraction(1, 4), "pětin": Fraction(1, 5),
    "desetin": Fraction(1, 10), "dvojnásob": Fraction(2), "trojnásob": Fraction(3),
}  # fmt: skip
_LOOK_BACK = 60
"""Tokens of a clause before a number that it may be compared with."""
_COUNTS = ("třetina", "desetinná")
"""Of a number of shops, of decimals."""


def percent_holds(amount: Amount, everyone: dict[str, Offer], compares: bool) -> bool:
    """Whether a percentage can truly be said of the shop that it is said of, or of any where shops are compared."""
    value = amount.token.value
    offers = [everyone[amount.shop]] if amount.shop in everyone else list(everyone.values())
    decimals = len(written_decimals(amount.token.text))
    about = amount.clause.means(Meaning.ABOUT) or "ani" in amount.clause.words
    tolerance = Fraction(1, 2 * 10**decimals) if decimals or about else Fraction(0)
    total = amount.clause.means(Meaning.TOTAL, Meaning.SAVE)
    several = any(len(offer.discounts) > 1 for offer in offers)
    if total and several and amount.shop:
        allowed = {offer.total_percent for offer in offers} | {100 - offer.total_percent for offer in offers}
        each = {Fraction(d.percent or 0) for offer in offers for d in offer.discounts}
        if not amount.clause.means(Meaning.SAVE):
            allowed |= each if amount.clause.words & {"a", "i"} else set()
    else:
        allowed = {percent for offer in offers for percent in offer.percents}
    if amount.clause.means(Meaning.SAVE) and not amount.clause.means(Meaning.THAN):
        compares = False  # against the list price
    if compares or not amount.shop or amount.role is Role.DIFFERENCE:
        allowed |= {percent for offer in everyone.values() for percent in offer.percents}
        allowed |= _relative_differences(everyone)
        tolerance = max(tolerance, Fraction(1, 2))
    if _is_of_another_price(amount):
        finals = [offer.final for offer in everyone.values()]
        allowed = {Fraction(100 * one, other) for one in finals for other in finals if other}
        tolerance = max(tolerance, Fraction(1, 2))
    sized = amount.clause.means(Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE)
    if amount.role is Role.DIFFERENCE and sized and not amount.clause.means(Meaning.DISCOUNT, Meaning.ORIGINAL):
        allowed = _relative_differences(everyone)
    if amount.clause.words & {"aby", "kdyby"} or {"muset", "musela"} & amount.clause.words:
        return True  # what would be needed
    if any(abs(value - percent) <= tolerance for percent in allowed):
        return True
    sums = {sum((Fraction(d.percent or 0) for d in offer.discounts), Fraction(0)) for offer in offers}
    return value in sums and amount.clause.unreal


def _is_of_another_price(amount: Amount) -> bool:
    """ "40 % toho, co v A"."""
    sentence = amount.clause.sentence
    at = bisect_left(sentence, amount.token.start, key=lambda token: token.start)
    following = sentence[at + 1 : at + 7]
    return bool(following) and following[0].lower == "toho" and any(token.shop for token in following)


def _relative_differences(offers: dict[str, Offer]) -> set[Fraction]:
    finals = [offer.final for offer in offers.values()]
    return {Fraction(100 * abs(a - b), c) for a in finals for b in finals for c in (a, b) if c}


def false_pairs(clause: Clause, offers: dict[str, Offer]) -> Iterator[tuple[Token, Token, Token]]:
    """ "40 % (980 Kč)", "665 Kč (10 %)" where the percentage does not make the amount, of any price or between two:
    the first of the two, the percentage and the amount."""
    for one, opening, other, closing in zip(*(clause.tokens[at:] for at in range(4)), strict=False):
        if opening.kind is not Kind.OPEN or closing.kind is not Kind.CLOSE:
            continue
        if one.kind is not Kind.NUMBER or other.kind is not Kind.NUMBER or one.unit == other.unit:
            continue
        if PERCENT not in (one.unit, other.unit):
            continue
        percent, money = (one, other) if one.unit == PERCENT else (other, one)
        bases = {base for offer in offers.values() for base in (offer.price, *offer.prices_after)}
        off = Fraction(1, 2 * 10 ** len(written_decimals(percent.text))) if percent is other else Fraction(0)
        left = money.value in {offer.final for offer in offers.values()}
        if not left and not any(abs(money.value * 100 / base - percent.value) <= off for base in bases if base):
            yield one, percent, money


def false_shares(clause: Clause, offers: dict[str, Offer]) -> Iterator[Token]:
    """ "přesně třetinu toho, co v obchodě A": a share that is called exact and is not, or that nothing comes near."""
    for token in clause.tokens:
        if token.kind is not Kind.WORD:
            continue
        share = next((value for stem, value in _SHARES.items() if token.lower.startswith(stem)), None)
        if share is None or token.lower in _COUNTS:
            continue
        shares = _shares(offers)
        near = any(abs(true - share) <= share * _TOLERATED for true in shares)
        if not near or ("přesně" in clause.words and share not in shares):
            yield token


def _shares(offers: dict[str, Offer]) -> set[Fraction]:
    numbers = {offer.final for offer in offers.values()}
    for offer in offers.values():
        numbers |= {offer.price, *offer.discounts_off, *offer.prices_after}
    return {Fraction(one, other) for one in numbers for other in numbers if other}


def is_rounded(amount: Amount, allowed: set[Fraction]) -> bool:
    """ "o více než tisíc korun", "necelých 500 Kč": a round number near one that is true, on the side that is said."""
    at = amount.clause.places[amount.token.start]
    before = [token.lower for token in amount.clause.tokens[max(0, at - 2) : at]]
    value = amount.token.value
    more = before[-2:] in (["více", "než"], ["víc", "než"]) or before[-1:] == ["přes"]
    less = before[-2:] in (["méně", "než"], ["míň", "než"], ["ani", "ne"]) or before[-1:] in (["necelých"], ["skoro"])
    if not more and not less:
        return False
    off = value * _TOLERATED
    return any(value < true <= value + off if more else value - off <= true < value for true in allowed)


def comparison_holds(amount: Amount) -> bool | None:
    """Whether "N je méně než M" holds, for M; None where nothing of the kind is said.

    Only what stands in the same parenthesis counts, and a denial only between the two numbers.
    """
    at = amount.clause.places[amount.token.start]
    tokens = amount.clause.tokens[max(0, at - _LOOK_BACK) : at]
    opened = max((back for back, one in enumerate(tokens) if one.kind in (Kind.OPEN, Kind.CLOSE)), default=-1)
    tokens = tokens[opened + 1 :]
    than = next(
        (back for back in range(len(tokens) - 1, max(-1, len(tokens) - 4), -1) if tokens[back].lower == "než"), 0
    )
    if not than or any(one.kind is Kind.NUMBER for one in tokens[than:]):
        return None
    numbers = [back for back in range(than) if tokens[back].is_money and (not back or tokens[back - 1].lower != "o")]
    less = any(one.word.means(Meaning.LESS) for one in tokens[:than])
    more = any(one.word.means(Meaning.MORE) for one in tokens[:than])
    if less == more or not numbers:
        return None
    denied = sum(one.word.means(Meaning.NOT) for one in tokens[:than]) % 2 == 1
    before = tokens[numbers[-1]].value
    holds_so = before < amount.token.value if less else before > amount.token.value
    return holds_so != denied
