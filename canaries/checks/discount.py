"""Czech price comparisons: the amounts on the way and the final decision are judged apart.

The point is the regression that a published card describes: the intermediate calculation was right and the final
comparison was flipped. So wrong numbers, a wrong conclusion and a missing one have codes of their own.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from canaries.checks._amounts import Amount, amounts, false_equations
from canaries.checks._base import Check, Decision, Expected, Failure, Tools, place_of, shown
from canaries.checks._conclusion import SHOP_NOUN, TIE, Conclusion, conclusion, last_conclusion
from canaries.checks._plain import Plain, plain

Shop = Literal["A", "B", "C"]
WRONG_CONCLUSION = "wrong_conclusion"
MAX_CHARACTERS = 100_000
"""A comparison of a few prices never takes so many; a longer answer ran away and is not read."""

_SHOP = re.compile(
    rf"(?<!\w){SHOP_NOUN}([ABC])(?!\w)|^[^\w\n]{{0,8}}([ABC])(?=[ \t]{{0,3}}[:)|])|(?<!\w)([ABC])(?=[ \t]{{0,3}}[:=])",
    re.MULTILINE,
)


class ExpectedDiscount(Expected):
    """`amounts`: per shop every amount on the way, the final price last. `decision`: the cheapest shop, or `tie`.

    Only the final prices must be stated; which steps lead there is the answer's choice, and those written as equations
    must hold.
    """

    amounts: dict[Shop, Annotated[list[int], Field(min_length=1)]]
    decision: Literal["A", "B", "C", "tie"]


def _segments(text: str) -> dict[str, list[tuple[int, int]]]:
    """Where each shop is spoken of: from its mention to the next one's."""
    mentions = list(_SHOP.finditer(text))
    ends = [*(mention.start() for mention in mentions[1:]), len(text)]
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for mention, end in zip(mentions, ends, strict=False):
        found[mention.group(1) or mention.group(2) or mention.group(3)].append((mention.end(), end))
    return found


def _stated(text: str, segments: list[tuple[int, int]]) -> Iterator[Amount]:
    return (amount for start, end in segments for amount in amounts(text, start, end))


def _amount_failures(text: str, expected: ExpectedDiscount) -> Iterator[Failure]:
    """The final price of every shop must be stated where that shop is worked out."""
    segments = _segments(text)
    for shop, wanted in expected.amounts.items():
        if not any(amount.value == wanted[-1] for amount in _stated(text, segments[shop])):
            message = f"the final price {wanted[-1]} Kč is not stated"
            yield Failure("discount", "wrong_amount", f"shop {shop}", message)


def _arithmetic_failures(answer: str, read: Plain) -> Iterator[Failure]:
    """Every equation that is written out must hold, whatever steps the answer chose."""
    for equation in false_equations(read.text):
        written = shown(read.text[equation.start : equation.end])
        place = place_of(answer, read.original(equation.start))
        message = f"{written}: the left side makes {_decimal(equation.left)}"
        yield Failure("discount", "wrong_arithmetic", place, message)


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"


def _discount(text: str, expected: ExpectedDiscount, tools: Tools) -> Iterator[Failure]:
    if len(text) > MAX_CHARACTERS:
        yield Failure("discount", "too_long", "answer", f"{len(text)} characters: not read")
        return
    read = plain(text)
    yield from _amount_failures(read.text, expected)
    yield from _arithmetic_failures(text, read)
    decided = last_conclusion(read.text)
    if decided is None:
        yield Failure("discount", "no_conclusion", "end", "no shop is named as the cheaper one")
    elif decided.decision != expected.decision:
        message = f"decides for {decided.decision}, right is {expected.decision}"
        place = place_of(text, read.original(decided.start))
        yield Failure("discount", WRONG_CONCLUSION, place, message)


def _decide_discount(text: str, expected: ExpectedDiscount, tools: Tools) -> list[Decision]:
    """Every amount where it is first worked out, and the shop, or the words that say that there is none."""
    read = plain(text)
    segments = _segments(read.text)
    found = []
    for shop, wanted in expected.amounts.items():
        stated = list(_stated(read.text, segments[shop]))
        for value in wanted:
            same = [amount for amount in stated if amount.value == value]
            worked_out = [
                amount for amount in same if read.text[max(0, amount.start - 4) : amount.start].rstrip().endswith("=")
            ]
            for amount in (worked_out or same)[:1]:
                found.append(Decision("amount", read.original(amount.start), read.original(amount.end - 1) + 1))
    decided = last_conclusion(read.text)
    return found if decided is None else [*found, _conclusion_decision(decided, read, expected)]


def _conclusion_decision(decided: Conclusion, read: Plain, expected: ExpectedDiscount) -> Decision:
    # the shop that is named; where only the dearer one is, another than the cheaper
    named = read.text[decided.start]
    others = [shop for shop in expected.amounts if shop != named]
    start, end = read.original(decided.start), read.original(decided.end - 1) + 1
    if decided.decision != TIE:
        return Decision("conclusion", start, end, tuple(others))
    # a tie is decided at the sentence's first word: there the answer could have begun to name a shop
    cheaper = "Levnější" if len(others) == 2 else "Nejlevnější"
    wrong = tuple(f"{cheaper} je obchod {shop}" for shop in others)
    return Decision("conclusion", read.original(decided.sentence), end, wrong)


discount = Check("discount", ExpectedDiscount, _discount, _decide_discount)

__all__ = ["WRONG_CONCLUSION", "ExpectedDiscount", "conclusion", "discount"]
