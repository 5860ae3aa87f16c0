"""Czech price comparisons: the amounts on the way and the final decision are judged apart.

The point is the regression that a published card describes: the intermediate calculation was right and the final
comparison was flipped. So wrong numbers, a wrong conclusion and a missing one have codes of their own.
"""

import re
import unicodedata
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from canaries.checks._base import Check, Expected, Failure, Tools, shown

Shop = Literal["A", "B", "C"]
WRONG_CONCLUSION = "wrong_conclusion"
_TIE = "tie"


class ExpectedDiscount(Expected):
    """`amounts`: per shop every amount on the way, the final price last. `decision`: the cheapest shop, or `tie`.

    Only the final prices must be stated; which steps lead there is the answer's choice, and those written as equations
    must hold.
    """

    amounts: dict[Shop, Annotated[list[int], Field(min_length=1)]]
    decision: Literal["A", "B", "C", "tie"]


_CENTS = r"[0-9]{1,2}(?![0-9])"
_NUMBER = rf"(?<![0-9,.])[0-9]{{1,3}}(?:[ .,][0-9]{{3}}){{1,4}}(?![0-9])(?:,{_CENTS})?|[0-9]{{1,15}}(?:[.,]{_CENTS})?"
"""Bounded in length, so that no text overflows a decimal."""

_GROUPED = re.compile(r"([0-9]{1,3}(?:[ .,][0-9]{3})+)(?:,([0-9]{1,2}))?")
_CURRENCY = r"\s*(?:Kč|korun\w*|,-)?\s*"
_NUMBERS = re.compile(_NUMBER)
_DIFFERENCE = re.compile(rf"({_NUMBER}){_CURRENCY}-\s*({_NUMBER}){_CURRENCY}=\s*({_NUMBER})")
_PERCENTAGE = re.compile(rf"({_NUMBER})\s*%\s*ze?\s+({_NUMBER}){_CURRENCY}=\s*({_NUMBER})")

_SHOP_NAMED = r"(?i:obchod\w*)\s+([ABC])\b"
"""The letter is upper case: a small "a" is the conjunction."""

_SHOP = re.compile(rf"\b{_SHOP_NAMED}|^\W*([ABC])\b(?=\s*[:)])", re.MULTILINE)
_CHEAPER = r"(?i:(?:nej)?(?:levněj\w*|výhodněj\w*|méně|míň|lépe|lepší|nižší))"
_THAN = re.compile(rf"\bnež\b[^.,;\n]*?\b{_SHOP_NAMED}")
_CHEAPER_THEN_SHOP = re.compile(rf"\b{_CHEAPER}\b[^.,;\n]*?\b{_SHOP_NAMED}")
_SHOP_THEN_CHEAPER = re.compile(rf"\b{_SHOP_NAMED}[^.,;\d\n]*?\b{_CHEAPER}\b")
_SAME = re.compile(r"\b(?:nastejno|stejn\w+|shodn\w+)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s+")


def _plain(text: str) -> str:
    """Composed letters, ordinary spaces and minus signs, no Markdown emphasis."""
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"[\u00a0\u2007\u2009\u202f]", " ", text)
    return re.sub(r"[*`_]", "", re.sub(r"[\u2212\u2013\u2012]", "-", text))


def _value(number: str) -> Decimal:
    """2 450, 2.450 and 2,450 are thousands (three digits follow), 2450,50 has a decimal comma."""
    grouped = _GROUPED.fullmatch(number)
    if grouped:
        return Decimal(re.sub(r"[ .,]", "", grouped.group(1)) + "." + (grouped.group(2) or "0"))
    return Decimal(number.replace(",", "."))


def _segments(text: str) -> dict[str, str]:
    """What is said of each shop: from its mention to the next one's."""
    mentions = list(_SHOP.finditer(text))
    said: dict[str, str] = {}
    for number, mention in enumerate(mentions):
        end = mentions[number + 1].start() if number + 1 < len(mentions) else len(text)
        shop = mention.group(1) or mention.group(2)
        said[shop] = said.get(shop, "") + "\n" + text[mention.end() : end]
    return said


def _amount_failures(text: str, expected: ExpectedDiscount) -> list[Failure]:
    """The final price of every shop must be stated where that shop is worked out."""
    segments = _segments(text)
    failures = []
    for shop, amounts in expected.amounts.items():
        stated = {_value(number) for number in _NUMBERS.findall(segments.get(shop, ""))}
        if amounts[-1] not in stated:
            message = f"the final price {amounts[-1]} Kč is not stated"
            failures.append(Failure("discount", "wrong_amount", f"shop {shop}", message))
    return failures


def _arithmetic_failures(text: str) -> list[Failure]:
    """Every equation that is written out must hold, whatever steps the answer chose."""
    failures = []
    for match in _DIFFERENCE.finditer(text):
        left, right, result = (_value(group) for group in match.groups())
        if left - right != result:
            failures.append(Failure("discount", "wrong_arithmetic", shown(match.group(0)), f"it makes {left - right}"))
    for match in _PERCENTAGE.finditer(text):
        percent, of, result = (_value(group) for group in match.groups())
        if percent * of != result * 100:
            failures.append(
                Failure("discount", "wrong_arithmetic", shown(match.group(0)), f"it makes {percent * of / 100}")
            )
    return failures


def conclusion(text: str) -> str | None:
    """The last decision an answer states: a shop's letter, `tie`, or None when there is none."""
    for sentence in reversed(_SENTENCE_END.split(_plain(text))):
        stripped = _THAN.sub("", sentence)
        found = _CHEAPER_THEN_SHOP.search(stripped) or _SHOP_THEN_CHEAPER.search(stripped)
        if found:
            return found.group(1)
        if _SAME.search(stripped):
            return _TIE
    return None


def _discount(text: str, expected: ExpectedDiscount, tools: Tools) -> list[Failure]:
    plain = _plain(text)
    failures = _amount_failures(plain, expected) + _arithmetic_failures(plain)
    decided = conclusion(plain)
    if decided is None:
        failures.append(Failure("discount", "no_conclusion", "end", "no shop is named as the cheaper one"))
    elif decided != expected.decision:
        message = f"decides for {decided}, right is {expected.decision}"
        failures.append(Failure("discount", WRONG_CONCLUSION, "end", message))
    return failures


discount = Check("discount", ExpectedDiscount, _discount)
