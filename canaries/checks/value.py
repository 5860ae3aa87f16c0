"""Short answers: one value, with any text around it; two prices and a conclusion on the last line."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pydantic import Field

from q36eval.canaries.checks.base import Check, Decision, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks.discount import NO_CONCLUSION, WRONG_CONCLUSION, WRONG_PRICE
from q36eval.canaries.checks.text import without_layout

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")


class ExpectedValue(Expected):
    """`value`: the right value. `others`: wrong values from the prompt; the first one named counts.
    `number`: the value is a number, and the last one named counts."""

    value: str
    others: list[str] = Field(default_factory=list)
    number: bool = False


class _Named(NamedTuple):
    """A candidate at `text[start:end]`."""

    start: int
    end: int
    said: str


def _named(text: str, expected: ExpectedValue) -> _Named | None:
    if expected.number:
        found = [_Named(*match.span(), match.group()) for match in _NUMBER.finditer(text)]
        return found[-1] if found else None
    whole = "|".join(re.escape(one) for one in sorted({expected.value, *expected.others}, key=len, reverse=True))
    match = re.search(rf"(?<!\w)(?:{whole})(?!\w)", text, re.IGNORECASE)
    return None if match is None else _Named(*match.span(), match.group())


def _is_right(said: str, expected: ExpectedValue) -> bool:
    if expected.number:
        return float(said.replace(",", "").replace("−", "-").casefold()) == float(expected.value)
    return said.casefold() == expected.value.casefold()


def _value(text: str, expected: ExpectedValue, tools: Tools) -> Iterator[Failure]:
    named = _named(text, expected)
    if named is None:
        yield Failure("value", "no_value", "answer", f"{shown(expected.value)} is not in {shown(text.strip())}")
    elif not _is_right(named.said, expected):
        message = f"says {shown(named.said)}, not {shown(expected.value)}"
        yield Failure("value", "wrong_value", place_of(text, named.start), message)


def _decide_value(text: str, expected: ExpectedValue, tools: Tools) -> list[Decision]:
    named = _named(text, expected)
    return [] if named is None else [Decision("value", named.start, named.end, tuple(expected.others))]


value = Check("value", ExpectedValue, _value, _decide_value)


_PRICE = r"\**[$€£]?\s?(?P<{}>\d[\d,]*(?:\.\d+)?)\s?(?:dollars|USD|[$€£])?\)?\**"
_LINE = re.compile(
    rf"A\W{{1,6}}{_PRICE.format('A')}\s?[,;|]\s?\**B\W{{1,6}}{_PRICE.format('B')}\s?[,;|]\s?"
    r"\**cheaper\W{1,6}(?P<cheaper>A|B|same)\b\W{0,6}",
    re.IGNORECASE,
)
_LONGEST = 200
"""The maximum of characters of a last line."""


class ExpectedPrices(Expected):
    """`prices`: the final price in each shop. `cheaper`: the cheaper shop, or `same`."""

    prices: dict[Literal["A", "B"], int]
    cheaper: Literal["A", "B", "same"]


def _last_line(text: str) -> tuple[int, re.Match[str] | None]:
    """The start of the last line, and its parts if it has the required form; layout marks are ignored."""
    line = next((line for line in reversed(text.split("\n")) if line.strip("`*$ \t\r")), "")
    start = text.rfind(line) if line else 0
    inner = without_layout(line.strip()).strip(" `*_$")
    match = _LINE.fullmatch(inner) if len(inner) <= _LONGEST else None
    return start + max(0, line.find(inner)), match


def _price_line(text: str, expected: ExpectedPrices, tools: Tools) -> Iterator[Failure]:
    start, match = _last_line(text)
    if match is None:
        message = f"{shown(text[start:].strip())} is not of the demanded form"
        yield Failure("price_line", NO_CONCLUSION, place_of(text, start), message)
        return
    for shop, price in expected.prices.items():
        if float(match[shop].replace(",", "")) != price:
            message = f"the price of {shop} is {shown(match[shop])}, not {price}"
            yield Failure("price_line", WRONG_PRICE, place_of(text, start + match.start(shop)), message)
    if match["cheaper"].casefold() != expected.cheaper.casefold():
        message = f"decides for {match['cheaper']}, right is {expected.cheaper}"
        yield Failure("price_line", WRONG_CONCLUSION, place_of(text, start + match.start("cheaper")), message)


def _decide_price_line(text: str, expected: ExpectedPrices, tools: Tools) -> list[Decision]:
    start, match = _last_line(text)
    if match is None:
        return []
    others = tuple(one for one in ("A", "B", "same") if one != expected.cheaper)
    decided = [Decision("amount", start + match.start(shop), start + match.end(shop)) for shop in expected.prices]
    at = start + match.start("cheaper")
    return [*decided, Decision("conclusion", at, start + match.end("cheaper"), others)]


price_line = Check("price_line", ExpectedPrices, _price_line, _decide_price_line)
