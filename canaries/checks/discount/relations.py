"""How amounts relate, as said and in truth: differences, percentages, shares, whether a condition is met."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations

from q36eval.canaries.checks.discount.offers import Offer
from q36eval.canaries.checks.price_reading.claims import Amount, Clause
from q36eval.canaries.checks.price_reading.clauses import is_aside, roles_of_shops
from q36eval.canaries.checks.price_reading.equations import written_decimals
from q36eval.canaries.checks.price_reading.lexicon import JOINS, Meaning, word_set
from q36eval.canaries.checks.price_reading.roles import Role
from q36eval.canaries.checks.price_reading.tokens import PERCENT, Kind, Token

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
    differences = {Fraction(0)}
    for one in offers.values():
        for other in offers.values():
            differences.add(Fraction(abs(one.price - other.price)))
            differences.add(Fraction(abs((one.price - one.final) - (other.price - other.final))))
            differences |= {Fraction(abs(a - b)) for a in one.discounts_off for b in other.discounts_off}
    return differences


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
        if _separates(tokens[place]) and any(one < place for one in money):
            start = place
            break
    for place in range(at + 1, len(tokens)):
        if _separates(tokens[place]) and any(one > place for one in money):
            end = place
            break
    return list(tokens[start:end])


def _separates(token: Token) -> bool:
    return token.lower in JOINS or token.kind is Kind.BREAK


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


def condition_said(clause: Clause, offer: Offer) -> tuple[Token, bool] | None:
    """The word that says that a discount of a shop applies or that its threshold is exceeded, and whether that is
    said; None where the shop has no threshold or nothing is said of it."""
    if all(step.discount.only_above is None for step in offer.steps):
        return None
    for part in _parts(_said(clause)):
        said = _says_in_part(part)
        if said is not None:
            return said
    return None


def applies(offer: Offer) -> bool:
    """Whether the discount that has a threshold applies."""
    return next(step.applies for step in offer.steps if step.discount.only_above is not None)


def leaves_open(clause: Clause) -> Token | None:
    """ "platí-li": the word that leaves open whether a discount applies."""
    return next((clause.tokens[0] for token in clause.tokens if token.lower == "li"), None)


_YES_OR_NO = word_set("ano ne splněno nesplněno")


def _said(clause: Clause) -> Sequence[Token]:
    """A heading of a table says nothing, but for a cell that answers it with yes or no."""
    cell = clause.tokens[clause.label :]
    answers = bool(cell) and cell[0].lower in _YES_OR_NO
    return clause.tokens if answers else cell


_JOINS_PARTS = word_set("a ale takže proto protože jelikož neboť")


def _parts(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Between "a", "ale", "protože" and parentheses: what one part denies, the other does not."""
    part: list[Token] = []
    for token in tokens:
        if token.lower in _JOINS_PARTS or token.kind in (Kind.OPEN, Kind.CLOSE, Kind.BREAK):
            yield part
            part = []
        part.append(token)
    yield part


def _denies(token: Token) -> bool:
    return token.word.means(Meaning.NOT) or token.word.negated or token.lower.startswith(("chyb", "scház"))


def _says_in_part(tokens: Sequence[Token]) -> tuple[Token, bool] | None:
    words = {token.lower for token in tokens}
    if words & {"pokud", "kdyby", "jestliže", "zda", "li", "by", "přesto", "abyste", "aby"}:
        return None
    denied = sum(_denies(token) for token in tokens) % 2 == 1
    only = any(token.word.means(Meaning.ONLY) for token in tokens)
    for at, token in enumerate(tokens):
        word = token.word
        if word.means(Meaning.MET):
            if only and not denied:
                return None
            number_after_nad = any(one.lower == "nad" for one in tokens[at:])
            if number_after_nad and not denied and token.lower.startswith(("uplat", "vztah", "použ")):
                return None
            return token, not denied
        if token.lower in ("platí", "neplatí", "platila", "platit", "platná", "neplatná"):
            subject = any(one.word.means(Meaning.DISCOUNT, Meaning.LIMIT) for one in tokens)
            reflexive = any(one.lower == "se" for one in tokens)
            if not subject or reflexive or (only and not denied) or any(one.lower == "nad" for one in tokens[at:]):
                return None
            return token, not denied
        follows = tokens[0].lower in ("takže", "proto") and token.lower in ("s", "se")
        if follows and any(one.word.means(Meaning.DISCOUNT) for one in tokens[at + 1 : at + 2]):
            return token, True
        if token.lower in ("bez", "beze") and any(one.word.means(Meaning.DISCOUNT) for one in tokens[at : at + 3]):
            return token, False
    return _copula(tokens, denied, only)


def _copula(tokens: Sequence[Token], denied: bool, only: bool) -> tuple[Token, bool] | None:
    """ "750 Kč je nad 500 Kč", "jsme pod hranicí"."""
    is_said = any(token.lower in ("je", "jsme", "jsou", "není", "nejsme") for token in tokens)
    if not is_said or only:
        return None
    for token in tokens:
        if token.lower in ("nad", "pod"):
            return token, (token.lower == "nad") != denied
    return None
