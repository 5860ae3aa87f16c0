"""Czech price comparisons, judged by each shop's final price and the conclusion, as last stated.

They detect the regression described by a published card: right prices with a flipped final comparison. So a wrong
price, a wrong conclusion and a missing one have separate codes. Equations, discounts, differences and reasons are not
judged. A text that cannot be attributed or understood is unreadable, unless another part is clearly wrong.

Read in this order: `offers` (the true values) → `words` and `tokens` → `prices` → `conclusions`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from q36eval.canaries.checks.base import Check, Decision, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks.discount.conclusions import Conclusion, read_conclusions
from q36eval.canaries.checks.discount.offers import TIE, Offer, Shop, decision
from q36eval.canaries.checks.discount.prices import Amount, Role, read_amounts
from q36eval.canaries.checks.discount.tokens import FOREIGN, Kind, Plain, lines_of, plain
from q36eval.canaries.checks.language import foreign_sentences

MAX_CHARACTERS = 12_000
"""A comparison of a few prices is always shorter; a longer answer ran away and is not read."""

MAX_REPEATED = 3
"""A clause repeated more often is a loop."""

_CLAUSE = re.compile(r"[^.,;!?\n]{16,}")

LAST_LINE = "Rozhodnutí: "
TIE_ON_LAST_LINE = "stejně"
WRONG_PRICE, WRONG_CONCLUSION, NO_CONCLUSION = "wrong_amount", "wrong_conclusion", "no_conclusion"


class ExpectedDiscount(Expected):
    """`offers`: per shop its list price and its consecutive discounts; all other values follow from them.

    `last_line`: the prompt demands that the last line be exactly "Rozhodnutí: A" (or another shop, or "stejně").
    """

    offers: Annotated[dict[Shop, Offer], Field(min_length=2)]
    last_line: bool = False

    @property
    def decision(self) -> str:
        """The cheapest shop, or `tie`."""
        return decision(self.offers)


@dataclass(frozen=True)
class _Reading:
    plain: Plain
    amounts: list[Amount]
    conclusions: list[Conclusion]
    smudged: bool
    """A digit of some amount is unreadable."""


def _read(text: str, expected: ExpectedDiscount) -> _Reading:
    read = plain(text)
    lines = lines_of(read.text)
    smudged = any(token.kind is Kind.SMUDGE for line in lines for token in line)
    conclusions = [] if expected.last_line else read_conclusions(lines, frozenset(expected.offers))
    return _Reading(read, read_amounts(lines), conclusions, smudged)


def _stated_prices(reading: _Reading, shop: Shop, expected: ExpectedDiscount) -> list[Amount]:
    """The amounts stated as a shop's final price, right or wrong, in the order of the text."""
    offer = expected.offers[shop]
    finals = [one.final for one in expected.offers.values()]
    differences = {abs(one - other) for one in finals for other in finals}
    known = {*finals, *differences}.union(*(one.on_the_way for one in expected.offers.values()))

    def is_price(amount: Amount) -> bool:
        value = amount.token.value
        if amount.shop != shop or amount.role is Role.NONE:
            return False
        if value == offer.final or amount.role is Role.FINAL:
            return True
        named = amount.role is Role.NAMED and value not in offer.on_the_way | differences
        return named or (amount.role is Role.PLAIN and value not in known)

    return [amount for amount in reading.amounts if is_price(amount)]


def _discount(text: str, expected: ExpectedDiscount, tools: Tools) -> Iterator[Failure]:
    if len(text) > MAX_CHARACTERS:
        yield Failure("discount", "too_long", "answer", f"{len(text)} characters: not read")
        return
    for sentence in foreign_sentences(text, "cs"):
        place = place_of(text, sentence.piece.start)
        yield Failure("discount", "wrong_language", place, f"is in {sentence.language}, not in Czech")
        break
    for said, times in Counter(_CLAUSE.findall(text)).most_common(1):
        if times > MAX_REPEATED:
            yield Failure("discount", "repetition", "answer", f"goes round in {shown(said)}")
    reading = _read(text, expected)
    for shop in expected.offers:
        yield from _price_failures(text, reading, shop, expected)
    yield from (
        _last_line_failures(text, expected) if expected.last_line else _conclusion_failures(text, reading, expected)
    )


def _price_failures(text: str, reading: _Reading, shop: Shop, expected: ExpectedDiscount) -> Iterator[Failure]:
    final = expected.offers[shop].final
    stated = _stated_prices(reading, shop, expected)
    if not stated:
        loose = any(one.token.value == final and not one.shop and one.role for one in reading.amounts)
        message = f"the final price {final} Kč is not stated"
        yield Failure("discount", WRONG_PRICE, f"shop {shop}", message, reading.smudged or loose)
        return
    last = stated[-1].token
    if last.value != final or last.unit == FOREIGN:
        place = place_of(text, reading.plain.original(last.start))
        message = f"the last price of shop {shop} is {shown(last.text)}, not {final} Kč"
        yield Failure("discount", WRONG_PRICE, place, message, reading.smudged)


def _conclusion_failures(text: str, reading: _Reading, expected: ExpectedDiscount) -> Iterator[Failure]:
    if not reading.conclusions:
        yield Failure("discount", NO_CONCLUSION, "end", "no shop is named as the cheaper one")
        return
    last = reading.conclusions[-1]
    if not last.decides:
        message = "something is said of the shops, and which is the cheaper one cannot be told"
        yield Failure("discount", NO_CONCLUSION, "end", message, unreadable=True)
    elif last.decides != expected.decision:
        place = place_of(text, reading.plain.original(last.token.end - 1))
        message = f"decides for {last.decides}, right is {expected.decision}"
        yield Failure("discount", WRONG_CONCLUSION, place, message)


def _last_line_failures(text: str, expected: ExpectedDiscount) -> Iterator[Failure]:
    said = next((line for line in reversed(text.split("\n")) if line.strip()), "").rstrip()
    place = place_of(text, max(0, text.rfind(said) if said else 0))
    decided = said.removeprefix(LAST_LINE)
    allowed: dict[str, str] = {TIE_ON_LAST_LINE: TIE} | {str(shop): str(shop) for shop in expected.offers}
    if not said.startswith(LAST_LINE) or decided not in allowed:
        message = f"{shown(said)} is not exactly {LAST_LINE!r} and a shop or a tie"
        yield Failure("discount", "wrong_last_line", place, message)
    elif allowed[decided] != expected.decision:
        message = f"decides for {allowed[decided]}, right is {expected.decision}"
        yield Failure("discount", WRONG_CONCLUSION, place, message)


# ---- decisions


def _decide_discount(text: str, expected: ExpectedDiscount, tools: Tools) -> list[Decision]:
    """Every amount at its first calculation, and the shop, or the words for a tie."""
    reading = _read(text, expected)
    decided = []
    for shop, offer in expected.offers.items():
        stated = [amount.token for amount in reading.amounts if amount.shop == shop and amount.role]
        for value in offer.way:
            for token in [token for token in stated if token.value == value][:1]:
                decided.append(_place(reading, "amount", token.start, token.end))
    return [*decided, _conclusion_decision(text, reading, expected)]


def _place(reading: _Reading, kind: str, start: int, end: int, wrong: tuple[str, ...] = ()) -> Decision:
    return Decision(kind, reading.plain.original(start), reading.plain.original(end - 1) + 1, wrong)


def _conclusion_decision(text: str, reading: _Reading, expected: ExpectedDiscount) -> Decision:
    if expected.last_line:
        start, end = text.rstrip().rfind(LAST_LINE) + len(LAST_LINE), len(text.rstrip())
        others = [*expected.offers, TIE_ON_LAST_LINE]
        return Decision("conclusion", start, end, tuple(other for other in others if other != text[start:end]))
    decided = reading.conclusions[-1]
    if decided.decides == TIE:
        # a tie is decided at the sentence's first word: the answer could have named a shop there
        cheaper = "Levnější" if len(expected.offers) == 2 else "Nejlevnější"
        wrong = tuple(f"{cheaper} je obchod {shop}" for shop in expected.offers)
        return _place(reading, "conclusion", decided.sentence, decided.token.end, wrong)
    # the named shop; if only the more expensive one is named, the alternative is the cheaper one
    named = decided.token
    others = [shop for shop in expected.offers if shop != named.shop]
    return _place(reading, "conclusion", named.end - 1, named.end, tuple(others))


discount = Check("discount", ExpectedDiscount, _discount, _decide_discount)

__all__ = ["WRONG_CONCLUSION", "ExpectedDiscount", "discount"]
