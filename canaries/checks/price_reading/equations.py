"""Sums, products, percentages and fractions as Czech answers write them, and the equations between them."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from q36eval.canaries.checks.price_reading.lexicon import word_set
from q36eval.canaries.checks.price_reading.tokens import PERCENT, Kind, Token

_MAX_TOKENS = 40
_MAX_DEPTH = 6
_OF = ("z", "ze")
_BETWEEN_OF = word_set(
    """ceny částky původní nové základu zbylých zbývajících zbytku hodnoty této tohoto výchozí snížené již celkových té
    už zlevněné"""
)
_OF_WORDS = _BETWEEN_OF | {*_OF}
_SOFT_EQUALS = word_set("je jsou činí dělá tvoří znamená")


class Value(NamedTuple):
    """What an expression is worth; 15 % is 0.15 with `percent`."""

    amount: Fraction
    percent: bool = False


class Side(NamedTuple):
    """One side of an equation: what it is worth (None where it cannot be read), and its tokens."""

    value: Value | None
    tokens: tuple[Token, ...]

    @property
    def numbers(self) -> list[Token]:
        return [token for token in self.tokens if token.kind is Kind.NUMBER]

    @property
    def is_compound(self) -> bool:
        """Whether anything is worked out on it."""
        return len(self.numbers) > 1


class Equation(NamedTuple):
    """Two sides with `=`, `≈`, `<` … between; `sign` is that token."""

    left: Side
    sign: Token
    right: Side
    goes_on: Value | None = None
    """What its left side makes where it goes on from the number before it: "2 030 Kč → mínus 110 Kč"."""

    @property
    def is_comparison(self) -> bool:
        return self.sign.kind is Kind.RELATION


_EXPRESSION = (Kind.NUMBER, Kind.OPERATOR, Kind.OPEN, Kind.CLOSE, Kind.CURRENCY, Kind.PERCENT)


def runs(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Stretches of numbers and signs; anything else ends one. "z" after a percentage is a sign of its own."""
    run: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind in _EXPRESSION or (run and token.kind in (Kind.EQUALS, Kind.RELATION)):
            run.append(token)
        elif token.kind is Kind.WORD and run and (jump := _joining(tokens, at, run)) is not None:
            sign, at = jump
            run.append(sign)
            continue
        elif run:
            yield run
            run = []
        at += 1
    if run:
        yield run


def _joining(tokens: Sequence[Token], at: int, run: list[Token]) -> tuple[Token, int] | None:
    """A word that stands for a sign between two numbers, and where the second begins."""
    word, last = tokens[at].lower, run[-1]
    if word in _OF and (last.unit == PERCENT or last.kind is Kind.PERCENT):
        following = at + 1
        while following < len(tokens) and following < at + 5 and tokens[following].lower in _BETWEEN_OF:
            following += 1
        if following < len(tokens) and tokens[following].kind is Kind.NUMBER:
            return tokens[at].as_sign(Kind.OPERATOR, "z"), following
        # "40 % z této částky je 760 Kč"
        states = following + 1 < len(tokens) and tokens[following + 1].kind is Kind.NUMBER
        equals = states and (tokens[following].lower in _SOFT_EQUALS or tokens[following].kind is Kind.EQUALS)
        if equals and tokens[following + 1].unit != PERCENT:
            return tokens[at].as_sign(Kind.EQUALS, "="), following + 1
    if word in _SOFT_EQUALS and any(token.kind is Kind.OPERATOR for token in run[1:9]):
        following = at + 1
        if following < len(tokens) and tokens[following].kind is Kind.NUMBER:
            return tokens[at].as_sign(Kind.EQUALS, "="), following
    return None


def equations(tokens: Sequence[Token]) -> Iterator[Equation]:
    """Every pair of neighbouring sides that an equals sign or an inequality joins."""
    for stream in without_asides(tokens):
        before: Token | None = None
        for run in runs(stream):
            for piece in _balanced(run):
                yield from _equations_of(piece, before)
            before = next((token for token in reversed(run) if token.kind is Kind.NUMBER), before)


def without_asides(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens without the parentheses that hold words, then the inside of each of those."""
    main: list[Token] = []
    asides: list[list[Token]] = []
    opened: list[tuple[int, int]] = []
    words = 0
    for token in tokens:
        main.append(token)
        words += token.kind is Kind.SHOP or (token.kind is Kind.WORD and token.lower not in _OF_WORDS)
        if token.kind is Kind.OPEN:
            opened.append((len(main) - 1, words))
        elif token.kind is Kind.CLOSE and opened:
            start, words_before = opened.pop()
            if words > words_before:
                asides.append(main[start + 1 : -1])
                del main[start:]
                words = words_before
    return [main, *asides]


def _balanced(run: list[Token]) -> Iterator[list[Token]]:
    """Pieces of a run between parentheses that have no partner: "(kontrola: 2 + 2 = 4)", "a) 5 − 3"."""
    opened: list[int] = []
    unmatched = []
    for at, token in enumerate(run):
        if token.kind is Kind.OPEN:
            opened.append(at)
        elif token.kind is Kind.CLOSE:
            if opened:
                opened.pop()
            else:
                unmatched.append(at)
    start = 0
    for at in sorted([*unmatched, *opened]):
        yield run[start:at]
        start = at + 1
    yield run[start:]


def _equations_of(piece: list[Token], before: Token | None = None) -> Iterator[Equation]:
    sides: list[list[Token]] = [[]]
    signs: list[Token] = []
    depth = 0
    for token in piece:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if token.kind in (Kind.EQUALS, Kind.RELATION) and depth == 0:
            signs.append(token)
            sides.append([])
        elif token.kind in (Kind.EQUALS, Kind.RELATION):
            # an equation inside a parenthesis of another: "(40 % = 980)" after a number
            inner = piece[_opening(piece, piece.index(token)) + 1 : _closing(piece, piece.index(token))]
            yield from _equations_of([one for one in inner if one.kind not in (Kind.OPEN, Kind.CLOSE)])
            return
        else:
            sides[-1].append(token)
    goes_on = value_of([before, *sides[0]]) if before and sides[0] and sides[0][0].kind is Kind.OPERATOR else None
    while sides[0] and sides[0][0].kind is Kind.OPERATOR:
        sides[0] = sides[0][1:]  # a dash after words
    read = [_side(side) for side in sides]
    for (left, right), sign in zip(pairwise(read), signs, strict=True):
        yield Equation(left, sign, right, goes_on)
        goes_on = None


def _opening(piece: list[Token], at: int) -> int:
    while at > 0 and piece[at].kind is not Kind.OPEN:
        at -= 1
    return at


def _closing(piece: list[Token], at: int) -> int:
    while at < len(piece) - 1 and piece[at].kind is not Kind.CLOSE:
        at += 1
    return at


def _side(tokens: list[Token]) -> Side:
    while tokens and tokens[-1].kind is Kind.OPERATOR:
        tokens = tokens[:-1]
    return Side(value_of(tokens), tuple(tokens))


def value_of(tokens: Sequence[Token]) -> Value | None:
    """What an expression is worth; None where it is none."""
    if not tokens or len(tokens) > _MAX_TOKENS:
        return None
    parser = _Parser([token for token in tokens if token.kind is not Kind.CURRENCY])
    value = parser.sum(0)
    return value if parser.at == len(parser.tokens) else None


class _Parser:
    """Recursive descent over a bounded number of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def _sign(self, wanted: str) -> str | None:
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind is Kind.OPERATOR and token.text in wanted:
                self.at += 1
                return token.text
        return None

    def sum(self, depth: int) -> Value | None:
        total = self._product(depth)
        while total is not None and (sign := self._sign("+-")):
            term = self._product(depth)
            if term is None:
                return None
            step = term.amount if sign == "+" else -term.amount
            if term.percent and not total.percent:
                total = Value(total.amount * (1 + step))
            else:
                total = Value(total.amount + step, total.percent and term.percent)
        return total

    def _product(self, depth: int) -> Value | None:
        product = self._factor(depth)
        while product is not None and (sign := self._sign("×÷z")):
            factor = self._factor(depth)
            if factor is None or (sign == "÷" and factor.amount == 0):
                return None
            percent = product.percent and factor.percent
            if sign == "÷":
                product = Value(product.amount / factor.amount, product.percent and not factor.percent)
            else:
                product = Value(product.amount * factor.amount, percent)
        return product

    def _factor(self, depth: int) -> Value | None:
        if self._sign("-"):
            inner = self._factor(depth + 1) if depth < _MAX_DEPTH else None
            return None if inner is None else Value(-inner.amount, inner.percent)
        if self.at >= len(self.tokens) or depth > _MAX_DEPTH:
            return None
        token = self.tokens[self.at]
        value: Value | None = None
        if token.kind is Kind.NUMBER:
            self.at += 1
            value = Value(token.value / 100, True) if token.unit == PERCENT else Value(token.value)
        elif token.kind is Kind.OPEN:
            self.at += 1
            value = self.sum(depth + 1)
            if value is None or self.at >= len(self.tokens) or self.tokens[self.at].kind is not Kind.CLOSE:
                return None
            self.at += 1
        if value is not None and self.at < len(self.tokens) and self.tokens[self.at].kind is Kind.PERCENT:
            self.at += 1
            value = Value(value.amount / 100, True)
        self._apposition()
        return value

    def _apposition(self) -> None:
        """What a parenthesis says again: "30 % (1 590 Kč)"."""
        following = self.tokens[self.at : self.at + 3]
        kinds = [token.kind for token in following]
        if kinds == [Kind.OPEN, Kind.NUMBER, Kind.CLOSE]:
            self.at += 3
        elif (
            kinds[:2] == [Kind.OPEN, Kind.OPERATOR]
            and len(kinds) == 3
            and kinds[2] is Kind.NUMBER
            and self.at + 3 < len(self.tokens)
            and self.tokens[self.at + 3].kind is Kind.CLOSE
        ):
            self.at += 4


def holds(equation: Equation) -> bool | None:
    """Whether an equation or an inequality is true; None where one side cannot be read, or is a bare percentage whose
    whole is not written ("40 % = 3 020 Kč").

    A right side with decimals may be rounded to them, and a percentage to its last digit.
    """
    left, right = equation.left.value, equation.right.value
    if left is None or right is None:
        return None
    if left.percent != right.percent:
        number = right if left.percent else left
        if abs(number.amount) > 2:
            return None
    if equation.is_comparison:
        return {
            "<": left.amount < right.amount,
            ">": left.amount > right.amount,
            "≤": left.amount <= right.amount,
            "≥": left.amount >= right.amount,
            "≠": left.amount != right.amount,
        }[equation.sign.text]
    if equation.goes_on is not None and abs(equation.goes_on.amount - right.amount) <= _rounding(equation):
        return True
    return abs(left.amount - right.amount) <= _rounding(equation)


def _rounding(equation: Equation) -> Fraction:
    numbers = equation.right.numbers
    if len(numbers) != 1:
        return Fraction(0)
    decimals = len(written_decimals(numbers[0].text))
    half = Fraction(1, 2 * 10**decimals)
    if equation.right.value is not None and equation.right.value.percent:
        return half / 100
    return half if decimals or equation.sign.text == "≈" else Fraction(0)


def written_decimals(number: str) -> str:
    """The digits after the decimal comma of a number as it is written."""
    digits = number.strip().rstrip("%Kčk -,").rstrip()
    for mark in ",.":
        whole, separator, rest = digits.rpartition(mark)
        if separator and rest.isdigit() and (len(rest) != 3 or whole in ("0", "")):
            return rest
    return ""
