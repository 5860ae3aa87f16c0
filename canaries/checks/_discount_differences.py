"""Differences: "o 50 Kč levnější", "ušetříte 460 Kč oproti obchodu B", and what each may truly be."""

from fractions import Fraction
from itertools import combinations

from q36eval.canaries.checks._claims import Amount, Clause
from q36eval.canaries.checks._clauses import is_aside, roles_of_shops
from q36eval.canaries.checks._lexicon import JOINS, Meaning
from q36eval.canaries.checks._offers import Offer
from q36eval.canaries.checks._roles import Role
from q36eval.canaries.checks._tokens import Kind, Token

_REACH = 60
"""Tokens on either side of an amount in which the shops that it is said of stand."""
_REDUCES = ("klesn", "sníž", "sniž", "zlevn", "ubere", "ubír", "odečt", "odečít", "pokles")


def between_finals(offers: dict[str, Offer], *shops: str) -> set[Fraction]:
    """Between the final prices: of these shops and the others, or of any."""
    pairs = combinations(offers, 2)
    return {
        Fraction(abs(offers[one].final - offers[other].final))
        for one, other in pairs
        if not shops or one in shops or other in shops
    }


def between_others(offers: dict[str, Offer]) -> set[Fraction]:
    """Between list prices, and between discounts."""
    found = {Fraction(0)}
    for one in offers.values():
        for other in offers.values():
            found.add(Fraction(abs(one.price - other.price)))
            found.add(Fraction(abs((one.price - one.final) - (other.price - other.final))))
            found |= {Fraction(abs(a - b)) for a in one.discounts_off for b in other.discounts_off}
    return found


def may_differ_by(amount: Amount, offers: dict[str, Offer]) -> set[Fraction]:
    """What an amount that is called a difference, or saved, may be."""
    clause = amount.clause
    own = [offers[amount.shop]] if amount.shop in offers else list(offers.values())
    off = {Fraction(one) for offer in own for one in offer.discounts_off}
    allowed = between_finals(offers, *clause.shops, *([amount.shop] if amount.shop and clause.shops else []))
    pair = _pair(amount)
    if pair:
        allowed = {
            Fraction(abs(offers[one].final - offers[other].final))
            for one in (pair[0] or offers)
            for other in pair[1]
            if one != other and one in offers and other in offers
        }
    discounts = clause.means(Meaning.DISCOUNT, Meaning.ORIGINAL) or "před" in clause.words
    if discounts or amount.token.value == 0 or is_aside(clause.tokens) or "začátku" in clause.words:
        allowed |= between_others(offers)
    saved_here = amount.role is Role.SAVED and not (roles_of_shops(clause.tokens)[1] and not discounts)
    if saved_here or discounts or _is_taken_off(amount):
        allowed |= off
    if clause.means(Meaning.LIMIT, Meaning.MET) or clause.words & {"nad", "pod"}:
        allowed |= {Fraction(abs(offer.price - limit)) for offer in offers.values() for limit in offer.thresholds}
    if clause.unreal and "by" in clause.words:
        allowed |= between_finals({shop: offer.as_if_met for shop, offer in offers.items()})
    return allowed


def _is_taken_off(amount: Amount) -> bool:
    """ "cena klesne o 620 Kč", "o dalších 630 Kč na 4 320 Kč"."""
    clause = amount.clause
    if clause.means(Meaning.DISCOUNT, Meaning.TAKE_OFF):
        return True
    if any(token.lower.startswith(_REDUCES) for token in clause.sentence):
        return not clause.means(Meaning.GOOD, Meaning.BAD)
    return False


def _pair(amount: Amount) -> tuple[frozenset[str], frozenset[str]] | None:
    """The shop that a difference is said of (empty where that is none of the clause) and the one that it is compared
    with, in the part of the clause around the amount: "proti C ušetříte 3 475 Kč a proti A 4 790 Kč"."""
    part = _around(amount.clause, amount.token)
    targets, than, denied = roles_of_shops(part)
    others = frozenset(token.shop for token in than)
    if len(others) != 1 or denied:
        return None
    said_of = frozenset(token.shop for token in targets)
    return said_of if len(said_of) == 1 else frozenset(), others


def _around(clause: Clause, amount: Token) -> list[Token]:
    """The tokens of a clause around an amount, up to "a" beyond which another amount stands."""
    place = clause.places[amount.start]
    tokens = clause.tokens[max(0, place - _REACH) : place + _REACH]
    at = min(place, _REACH)
    money = [place for place, token in enumerate(tokens) if token.is_money and place != at]
    start, end = 0, len(tokens)
    for place in range(at - 1, -1, -1):
        if _parts(tokens[place]) and any(one < place for one in money):
            start = place
            break
    for place in range(at + 1, len(tokens)):
        if _parts(tokens[place]) and any(one > place for one in money):
            end = place
            break
    return list(tokens[start:end])


def _parts(token: Token) -> bool:
    return token.lower in JOINS or token.kind is Kind.BREAK
