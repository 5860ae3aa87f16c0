"""Amounts of money in Czech prose, and the equations between them."""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

_CENTS = r"[0-9]{1,2}(?![0-9])"
_THOUSANDS = rf"(?<![0-9,.])[0-9]{{1,3}}(?:[ .,][0-9]{{3}}){{1,4}}(?![0-9])(?:,{_CENTS})?"
NUMBER = rf"{_THOUSANDS}|[0-9]{{1,15}}(?:[.,][0-9]{{1,6}}(?![0-9]))?"
"""Bounded in length, so that arithmetic on it is cheap."""

_NUMBER = re.compile(NUMBER)
_GROUPED = re.compile(r"([1-9][0-9]{0,2}(?:[ .,][0-9]{3})+)(?:,([0-9]{1,2}))?")
_TOKEN = re.compile(
    rf"(?P<number>{NUMBER})"
    r"|(?P<of>%[ \t]{0,4}ze?(?!\w))"
    r"|(?P<percent>%)"
    r"|(?P<operator>[-+×÷/]|(?<=[ \t])x(?=[ \t]))"
    r"|(?P<equals>=)"
    r"|(?P<skipped>[ \t]+|Kč|CZK|korun\w{0,3}|,-(?!\d))"
    r"|(?P<other>\w+|\s|.)",
    re.DOTALL,
)
_MAX_TERMS = 8


class Amount(NamedTuple):
    """A number as it is written at [start, end)."""

    value: Fraction
    start: int
    end: int


class Equation(NamedTuple):
    """Two expressions with `=` between, the left one worth `left`, the right one `right`."""

    left: Fraction
    right: Fraction
    start: int
    end: int


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def amounts(text: str, start: int = 0, end: int | None = None) -> Iterator[Amount]:
    """Every number in text[start:end]."""
    for match in _NUMBER.finditer(text, start, len(text) if end is None else end):
        yield Amount(number_value(match.group()), *match.span())


def number_value(number: str) -> Fraction:
    """2 450, 2.450 and 2,450 are thousands (three digits follow), 2450,50 and 0,125 have a decimal comma."""
    grouped = _GROUPED.fullmatch(number)
    if grouped:
        whole = re.sub(r"[ .,]", "", grouped.group(1))
        return Fraction(f"{whole}.{grouped.group(2) or '0'}")
    if len(re.findall(r"[.,]", number)) > 1:
        return Fraction(re.sub(r"[ .,]", "", number))
    return Fraction(number.replace(",", ".").replace(" ", ""))


def false_equations(text: str) -> Iterator[Equation]:
    """The equations that do not hold. What is no plain sum, difference, product or percentage is left alone.

    `15 % z 2 400`, `2 400 - 360 - 40`, `2 400 × 0,85`, `2 400 - 15 %` and chains of `=` are understood; parentheses and
    words are not. A right side with decimals may be rounded to them.
    """
    for line in _statements(text):
        sides: list[list[_Token]] = [[]]
        for token in line:
            if token.kind == "equals":
                sides.append([])
            else:
                sides[-1].append(token)
        for left, right in pairwise(sides):
            equation = _equation(left, right)
            if equation is not None and abs(equation.left - equation.right) > _rounding(right):
                yield equation


def _statements(text: str) -> Iterator[list[_Token]]:
    """Runs of numbers, operators and equals signs; anything else ends a run."""
    run: list[_Token] = []
    before = "\n"
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind == "skipped":
            continue
        if kind == "other":
            if run and run[-1].text == "-":
                run.pop()  # a dash before words
            yield run
            run, before = [], match.group()[-1]
            continue
        if not run and kind in ("operator", "of", "percent"):
            if match.group() == "-" and before not in ")]":
                continue  # a dash after words
            kind = "cut"  # the expression began before the word or the parenthesis
        run.append(_Token(kind, match.group(), *match.span()))
    yield run


def _rounding(right: list[_Token]) -> Fraction:
    decimals = re.search(r"[.,]([0-9]{1,2})$", right[-1].text) if len(right) == 1 else None
    return Fraction(1, 2 * 10 ** len(decimals.group(1))) if decimals else Fraction(0)


def _equation(left: list[_Token], right: list[_Token]) -> Equation | None:
    if not left or not right or len(left) + len(right) < 3:
        return None
    values = _value(left), _value(right)
    if values[0] is None or values[1] is None:
        return None
    return Equation(values[0], values[1], left[0].start, right[-1].end)


def _value(side: list[_Token]) -> Fraction | None:
    """What an expression is worth; None where it is none, or where it could be read in two ways."""
    numbers = [token for token in side if token.kind == "number"]
    if not numbers or len(numbers) > _MAX_TERMS:
        return None
    terms = _terms(side)
    if terms is None:
        return None
    percents = [percent for _, _, percent in terms]
    if all(percents) and len(terms) > 0:
        return sum((sign * value for sign, value, _ in terms), Fraction(0))
    if percents[0]:
        return None
    total = Fraction(0)
    for sign, value, percent in terms:
        total += sign * (total * value / 100 if percent else value)
    return total


def _terms(side: list[_Token]) -> list[tuple[int, Fraction, bool]] | None:
    """(sign, value, whether it is a bare percentage) of every summand."""
    terms: list[tuple[int, Fraction, bool]] = []
    sign, operator = 1, "+"
    at = 0
    while at < len(side):
        read = _factor(side, at)
        if read is None:
            return None
        value, percent, at = read
        if operator in "+-":
            terms.append((sign, value, percent))
        else:
            before_sign, before, before_percent = terms[-1]
            factor = value / 100 if percent else value
            if before_percent or (operator in "/÷" and factor == 0):
                return None
            terms[-1] = (before_sign, before / factor if operator in "/÷" else before * factor, False)
        if at == len(side):
            return terms
        if side[at].kind != "operator":
            return None
        operator = side[at].text
        sign = -1 if operator == "-" else 1
        at += 1
    return None


def _factor(side: list[_Token], at: int) -> tuple[Fraction, bool, int] | None:
    """A number, a percentage, or a percentage of a number: value, whether a bare percentage, the token after it."""
    if side[at].kind != "number":
        return None
    value = number_value(side[at].text)
    following = side[at + 1].kind if at + 1 < len(side) else ""
    if following == "percent":
        return value, True, at + 2
    if following == "of":
        if at + 2 >= len(side) or side[at + 2].kind != "number":
            return None
        return value * number_value(side[at + 2].text) / 100, False, at + 3
    return value, False, at + 1
