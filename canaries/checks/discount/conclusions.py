"""The rules for conclusions: every statement about the shops is true, and one that decides stands after the sums."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from q36eval.canaries.checks.base import Failure, place_of
from q36eval.canaries.checks.discount.offers import TIE, Offers, decision
from q36eval.canaries.checks.price_reading import Reading, read_answer
from q36eval.canaries.checks.price_reading.comparisons import Says, Statement
from q36eval.canaries.checks.price_reading.lexicon import Meaning
from q36eval.canaries.checks.price_reading.tokens import PERCENT, Kind

WRONG_CONCLUSION, NO_CONCLUSION = "wrong_conclusion", "no_conclusion"


def conclusion(answer: str) -> str | None:
    """The last decision an answer states: a shop's letter, `tie`, or None when there is none."""
    reading = read_answer(answer)
    shops = {token.shop for line in reading.lines for token in line if token.shop}
    decided = None
    for statement in reading.statements:
        decided = _decides(statement, shops) or decided
    return decided


def _decides(statement: Statement, shops: set[str]) -> str | None:
    """The shop that a statement makes the cheapest of `shops`."""
    if statement.hedged:
        return None
    if statement.says is Says.SAME:
        return TIE if not statement.shops or set(statement.shops) >= shops else None
    if statement.says is Says.ORDER:
        return statement.shops[0] if set(statement.shops) >= shops else None
    if statement.says is Says.CHEAPER and len(statement.shops) == 1:
        partial = statement.than and len(shops) > 2 and not statement.than >= shops - set(statement.shops)
        return None if partial else statement.shops[0]
    if statement.says in (Says.DEARER, Says.NOT_CHEAPER):
        others = shops - set(statement.shops)
        return others.pop() if len(others) == 1 else None
    return None


def is_true(statement: Statement, offers: Offers) -> bool | None:
    """Whether a statement holds; None where it cannot be told what it states."""
    finals = {str(shop): offer.final for shop, offer in offers.items()}
    shops = [shop for shop in statement.shops if shop in finals]
    if len(shops) < len(statement.shops):
        return False
    if statement.says is Says.SAME:
        return len({finals[shop] for shop in (shops or finals)}) == 1
    if statement.says is Says.SAME_DISCOUNT:
        return _same_discount(offers)
    if statement.says in (Says.MORE_DISCOUNT, Says.LESS_DISCOUNT):
        return _discount_is(statement, offers)
    if statement.says is Says.ORDER:
        return all(finals[one] <= finals[other] for one, other in pairwise(shops))
    if statement.says is Says.UNCLEAR or not shops:
        return None
    others = [finals[shop] for shop in finals if shop not in shops]
    compared = [finals[shop] for shop in statement.than if shop in finals] or others
    if not compared:
        return len(set(finals.values())) > 1 if statement.says is Says.DEARER else True
    low, high = max(finals[shop] for shop in shops), min(finals[shop] for shop in shops)
    if statement.says is Says.CHEAPER:
        return low < min(compared)
    if statement.says is Says.NOT_CHEAPER:
        return high >= min(compared)
    if statement.says is Says.NOT_DEARER:
        return low <= max(compared)
    if statement.than or statement.superlative or len(finals) == 2:
        return high > max(compared)
    return high > min(compared)


def _discount_is(statement: Statement, offers: Offers) -> bool:
    """Whether a discount is bigger or smaller than the others', in crowns or in percent."""
    one = next(offer for shop, offer in offers.items() if shop == statement.shops[0])
    others = [offer for shop, offer in offers.items() if shop != statement.shops[0]]
    others = [offer for shop, offer in offers.items() if shop in statement.than] or others
    in_crowns = [(one.price - one.final, other.price - other.final) for other in others]
    in_percent = [(one.total_percent, other.total_percent) for other in others]
    if statement.says is Says.MORE_DISCOUNT:
        return all(own > its for own, its in in_crowns) or all(own > its for own, its in in_percent)
    return all(own < its for own, its in in_crowns) or all(own < its for own, its in in_percent)


_OF_DISCOUNTS = (Says.SAME_DISCOUNT, Says.MORE_DISCOUNT, Says.LESS_DISCOUNT)


def _same_discount(offers: Offers) -> bool:
    amounts = {offer.price - offer.final for offer in offers.values()}
    percents = {tuple(d.percent for d in offer.discounts) for offer in offers.values()}
    return len(amounts) == 1 or len(percents) == 1


def conclusion_failures(
    text: str, reading: Reading, offers: Offers, worked_out: int, needed: bool
) -> Iterator[Failure]:
    """What is false of the statements, and whether one that decides is lacking where it is `needed`.

    `worked_out` is the line on which all final prices are known.
    """
    right = decision(offers)
    standing = list(_standing(reading, worked_out))
    decided = unclear = early = False
    for statement in (_resolved(one, offers) for one in standing):
        truth = is_true(statement, offers)
        aside = truth is False and (
            _saves_its_discount(statement, offers)
            or (_is_of_list_prices(statement, offers) and not _speaks_of_after(reading, statement))
        )
        if truth is None or statement.hedged or aside:
            unclear = unclear or statement.line >= worked_out
            continue
        if truth is False:
            of_discounts = statement.says in _OF_DISCOUNTS
            code = "wrong_claim" if of_discounts else WRONG_CONCLUSION
            at = statement.token.end - 1 if statement.token.shop else statement.token.start
            whom = " and ".join(statement.shops) or "all"
            message = f"says of {whom} that it is {statement.says}; right is {right}"
            yield Failure("discount", code, place_of(text, reading.plain.original(at)), message)
            if not of_discounts:
                return
            continue
        if _decided_so_far(statement, standing, offers) == right:
            decided = decided or statement.line >= worked_out
            early = True
    if decided or not needed:
        return
    if unclear or _names_a_shop_after(reading, worked_out):
        message = "something is said of the shops, and which is the cheaper one cannot be told"
        yield Failure("discount", NO_CONCLUSION, "end", message, unreadable=True)
    elif early:
        yield Failure("discount", "conclusion_first", "end", "the conclusion stands before the calculation, not after")
    else:
        yield Failure("discount", NO_CONCLUSION, "end", "no shop is named as the cheaper one")


def _speaks_of_after(reading: Reading, statement: Statement) -> bool:
    """ "Po slevách je A o 750 Kč dražší": by its own words not of the list prices."""
    line = reading.lines[statement.line]
    return any(
        one.lower == "po" and two.word.means(Meaning.DISCOUNT)
        for one, two in pairwise(line)
        if statement.sentence <= one.start < statement.token.end
    )


def _is_of_list_prices(statement: Statement, offers: Offers) -> bool:
    """ "stojí 2 900 Kč, což je o 100 Kč víc než v A": true of the prices before the discounts, and says by how much."""
    before = {shop: offer.model_copy(update={"discounts": []}) for shop, offer in offers.items()}
    differences = {abs(one.price - other.price) for one in offers.values() for other in offers.values()}
    finals = {abs(one.final - other.final) for one in offers.values() for other in offers.values()}
    by = {value for value in statement.amounts if value in differences - finals}
    return bool(by) and is_true(statement, before) is True


def _saves_its_discount(statement: Statement, offers: Offers) -> bool:
    """ "B: 6 980 Kč (ušetříte 2 170 Kč)": against the list price, not against another shop."""
    own = {Fraction(off) for shop, offer in offers.items() if shop in statement.shops for off in offer.discounts_off}
    return bool(statement.amounts & own and statement.saves) and not statement.than and not statement.superlative


def _names_a_shop_after(reading: Reading, worked_out: int) -> bool:
    """Whether a sentence in prose after the sums speaks of a shop, in words that nobody listed."""
    understood = {statement.line for statement in reading.statements}
    for number, line in enumerate(reading.lines):
        if number <= worked_out or worked_out < 0 or number in understood:
            continue
        words = sum(token.kind is Kind.WORD for token in line)
        question = bool(line) and "?" in line[-1].text
        if words >= _SAYS_SOMETHING and len({token.shop for token in line if token.shop}) == 1 and not question:
            return True
    return False


_SAYS_SOMETHING = 4
"""Words of a sentence that is more than a heading or a sum."""


def _resolved(statement: Statement, offers: Offers) -> Statement:
    """With the shop that is named by its discount, where only one has such a discount."""
    if not statement.subject:
        return statement
    fitting: set[str] = set()
    for shop, offer in offers.items():
        for token in statement.subject:
            if token.kind is not Kind.NUMBER:
                by_percent = token.lower.startswith("procent")
                fits = len(offer.discounts) == 1 and (offer.discounts[0].percent is not None) == by_percent
            elif token.unit == PERCENT:
                fits = any(discount.percent == token.value for discount in offer.discounts)
            else:
                fits = any(discount.amount == token.value for discount in offer.discounts)
            if fits:
                fitting.add(str(shop))
    return replace(statement, shops=tuple(fitting), subject=()) if len(fitting) == 1 else replace(statement, subject=())


def _standing(reading: Reading, worked_out: int) -> Iterator[Statement]:
    """The statements that are not taken back; a shop that stands alone says nothing before the sums are done."""
    last = max((number for number, line in enumerate(reading.lines) if line), default=0)
    for statement in reading.statements:
        if statement.bare and (statement.line <= worked_out or (worked_out < 0 and statement.line < last)):
            continue
        if not reading.corrected(statement.token.start, statement.line):
            yield statement


def _decided_so_far(statement: Statement, standing: list[Statement], offers: Offers) -> str | None:
    """What a statement decides, with the shops that it and those before it call dearer left out."""
    shops = {str(shop) for shop in offers}
    if statement.says in (Says.DEARER, Says.CHEAPER) and not _decides(statement, shops):
        dearer: set[str] = set()
        for one in standing:
            if one.says is Says.DEARER:
                dearer |= set(one.shops)
            elif one.says is Says.CHEAPER:
                dearer |= one.than
            if one is statement:
                break
        left = shops - dearer
        return left.pop() if len(left) == 1 else None
    return _decides(statement, shops)


def deciding(reading: Reading, offers: Offers) -> Statement | None:
    """The last statement that decides rightly."""
    right = decision(offers)
    shops = {str(shop) for shop in offers}
    decisive = [one for one in reading.statements if _decides(one, shops) == right]
    return decisive[-1] if decisive else None


__all__ = ["NO_CONCLUSION", "WRONG_CONCLUSION", "conclusion", "conclusion_failures", "deciding", "is_true"]
