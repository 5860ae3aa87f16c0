"""The amounts that an answer states: whose they are, in what role, and the equations that they stand in."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from q36eval.canaries.checks.price_reading.equations import Equation, equations, without_asides
from q36eval.canaries.checks.price_reading.lexicon import Meaning
from q36eval.canaries.checks.price_reading.roles import ENDS_CLAUSE, Role, role_of
from q36eval.canaries.checks.price_reading.tokens import Kind, Token


@dataclass(frozen=True)
class Amount:
    """One number of the answer. `shop`: whose it is, "" where that cannot be told."""

    token: Token
    shop: str
    role: Role
    line: int
    operand: bool = False
    """It stands in a sum that is worked out, and is not what that makes."""
    result: bool = False
    equation: int = -1
    """The equation that it is in, by number."""
    tabular: bool = False
    inherited: bool = False
    """Its line names no shop; a heading above it does."""
    clause: "Clause" = field(repr=False, default=None)  # type: ignore[assignment]  # always given


@dataclass(frozen=True)
class Clause:
    """Tokens up to a comma, a semicolon, an arrow or a full stop. `shop`: the one that it speaks of, "" if none or
    several; `unreal`: its sentence denies something or speaks of what does not happen."""

    tokens: tuple[Token, ...]
    shop: str
    line: int
    unreal: bool
    sentence: tuple[Token, ...]
    label: int = 0
    """How many tokens at its beginning are a table's heading."""

    @cached_property
    def places(self) -> dict[int, int]:
        """By where a token starts: which one of the clause it is."""
        return {token.start: at for at, token in enumerate(self.tokens)}

    @cached_property
    def shops(self) -> frozenset[str]:
        return shops_in(self.tokens)

    @cached_property
    def compares(self) -> bool:
        """Whether it compares shops."""
        return any(one.word.means(*COMPARES) or one.kind is Kind.RELATION for one in self.tokens)

    @cached_property
    def words(self) -> frozenset[str]:
        """Its words in lower case."""
        return frozenset(token.lower for token in self.tokens)

    def means(self, *meanings: Meaning) -> bool:
        """Whether one of its words means one of these."""
        return any(token.word.means(*meanings) for token in self.tokens)


@dataclass(frozen=True)
class Stated:
    """An equation and the shop that it is of."""

    equation: Equation
    shop: str
    line: int


@dataclass(frozen=True)
class Claims:
    """All amounts in the order of the text, and all equations."""

    amounts: list[Amount]
    equations: list[Stated]
    clauses: list[Clause]


COMPARES = (
    Meaning.GOOD, Meaning.BAD, Meaning.SAVE, Meaning.WIN, Meaning.LOSE, Meaning.BEAT, Meaning.WORTH, Meaning.FAVOUR,
    Meaning.OVERPAY, Meaning.DIFFERENCE, Meaning.RANKING, Meaning.LESS, Meaning.MORE, Meaning.LABEL, Meaning.SAME,
    Meaning.DIFFER, Meaning.THAN, Meaning.CHOOSE,
)  # fmt: skip


def read_claims(lines: Sequence[Sequence[Token]]) -> Claims:
    """What is stated, line by line. A heading that names one shop speaks for the lines below it."""
    claims = Claims([], [], [])
    owner, in_table = "", False
    table: list[int] = []
    for number, line in enumerate([*lines, []]):
        if _is_row(line):
            table.append(number)
            in_table = True
            continue
        if in_table:
            _read_table(lines, table, owner, claims)
            table, in_table = [], False
        if not line:
            continue
        of_line, owner = _owner(line, owner)
        _read_line(line, number, of_line, claims)
    return claims


def row_lines(lines: Sequence[Sequence[Token]]) -> frozenset[int]:
    """The numbers of the lines that belong to tables."""
    return frozenset(number for number, line in enumerate(lines) if _is_row(line))


def _is_row(line: Sequence[Token]) -> bool:
    return sum(token.text == "|" for token in line) >= 2 or (bool(line) and line[0].text == "|")


def shops_in(tokens: Sequence[Token]) -> frozenset[str]:
    """The letters of the shops that are named."""
    return frozenset(token.shop for token in tokens if token.shop)


def _owner(line: Sequence[Token], before: str) -> tuple[str, str]:
    """Whose a line is as far as it names no shop itself, and whose the lines below it are."""
    shops = shops_in(line)
    if len(shops) > 1:
        return "", ""
    if shops:
        first = next(at for at, token in enumerate(line) if token.shop)
        begins = not any(token.is_money and (token.unit or token.value > _STEPS) for token in line[:first])
        owner = next(iter(shops)) if begins else ""
        return owner, owner
    money = any(token.is_money and token.unit for token in line)
    concludes = any(
        (token.word.means(*_CONCLUDES) and not (money and token.lower.startswith("výsled"))) or token.word.superlative
        for token in line
    )
    if not concludes or _works_out(line):
        return before, before
    return "", "" if len(line) <= _HEADING else before


_CONCLUDES = (
    Meaning.GOOD, Meaning.BAD, Meaning.WIN, Meaning.LOSE, Meaning.BEAT, Meaning.WORTH, Meaning.FAVOUR, Meaning.OVERPAY,
    Meaning.DIFFERENCE, Meaning.RANKING, Meaning.LABEL, Meaning.SAME, Meaning.DIFFER,
)  # fmt: skip
_STEPS = 20
"""A heading may be numbered: "Krok 1: Výpočet ceny v obchodě A"."""
_HEADING = 5
"""Tokens of a heading at most."""


def _works_out(line: Sequence[Token]) -> bool:
    return any(token.kind is Kind.EQUALS for token in line) and not any(
        token.word.means(Meaning.DIFFERENCE, Meaning.GOOD, Meaning.LABEL) for token in line
    )


# ---- lines


def _read_line(line: Sequence[Token], number: int, owner: str, claims: Claims) -> None:
    places = {token.start: at for at, token in enumerate(line)}
    named = any(token.shop for token in line)
    current = "" if len(shops_in(line)) > 1 else owner
    in_equation = _of_equations(line, number, claims, current)
    sentences = list(_sentences(line))
    start, subject = 0, current
    for tokens in _clauses(line):
        sentence, unreal = sentences[start]
        clause = Clause(tuple(tokens), _clause_shop(tokens, current), number, unreal, sentence)
        claims.clauses.append(clause)
        after, in_order = _named_after(tokens), _in_order(tokens)
        for at, token in enumerate(tokens):
            before = tokens[max(0, at - 3) : at]
            if token.shop and not any(one.lower in _LIKEWISE for one in before):
                current = token.shop
                compared = any(one.word.means(Meaning.THAN) and one.lower != "místo" for one in before)
                subject = subject if compared and subject else token.shop
            if token.kind is not Kind.NUMBER:
                continue
            shop = in_order.get(token.start) or after.get(token.start, current)
            equation, place = in_equation.get(token.start, (-1, ""))
            first = places[token.start]
            if place == "result":
                first = _first_of(line, places, claims.equations[equation])
            role = role_of(line, first, places[token.start])
            if equation >= 0 and claims.equations[equation].equation.is_comparison:
                role = Role.OTHER
            claims.amounts.append(
                Amount(
                    token,
                    shop,
                    role,
                    number,
                    place == "operand",
                    place == "result",
                    equation,
                    inherited=not named,
                    clause=clause,
                )
            )
        start += len(tokens)
        if tokens[-1].kind is Kind.STOP:
            current = subject  # "o 400 Kč méně než v obchodě A. Po slevě …"


def _of_equations(line: Sequence[Token], number: int, claims: Claims, owner: str) -> dict[int, tuple[int, str]]:
    """By a number's place: the equation that it stands in, and whether as an operand or as what the equation makes."""
    places: dict[int, tuple[int, str]] = {}
    shops = [(token.start, token.shop) for token in line if token.shop]
    for equation in equations(line):
        at = len(claims.equations)
        start = (equation.left.tokens or (equation.sign,))[0].start
        before = bisect_left(shops, (start, "")) - 1
        claims.equations.append(Stated(equation, shops[before][1] if before >= 0 else owner, number))
        left, right = equation.left.numbers, equation.right.numbers
        for one in left:
            if len(left) > 1 or places.get(one.start, (0, ""))[1] != "result":
                places[one.start] = (at, "operand" if len(left) > 1 else "")
        for one in right:
            alone = len(right) == 1 and not equation.is_comparison
            places[one.start] = (at, "result" if alone else "operand" if len(right) > 1 else "")
    for stream in without_asides(line):
        for one, two, three in zip(stream, stream[1:], stream[2:], strict=False):
            if two.kind is Kind.OPERATOR and one.kind is Kind.NUMBER and three.kind is Kind.NUMBER:
                for operand in (one, three):
                    places.setdefault(operand.start, (-1, "operand"))
    return places


_LIKEWISE = ("jako", "co", "totéž")
"""The shop after them is one that another does the same as."""

_IN_EQUATIONS = (
    Kind.NUMBER, Kind.OPERATOR, Kind.EQUALS, Kind.OPEN, Kind.CLOSE, Kind.CURRENCY, Kind.PERCENT
)  # fmt: skip


def _first_of(line: Sequence[Token], places: dict[int, int], stated: Stated) -> int:
    """Where the chain of equations that this one ends begins, a few sides back."""
    first = (stated.equation.left.tokens or (stated.equation.sign,))[0]
    at = bound = places.get(first.start, 0)
    while at > 0 and bound - at < 40 and line[at - 1].kind in _IN_EQUATIONS:
        at -= 1
    return at


def _clauses(line: Sequence[Token]) -> Iterator[list[Token]]:
    """Pieces between commas, semicolons, dashes, arrows and full stops; each holds the mark that ends it."""
    clause: list[Token] = []
    for token in line:
        clause.append(token)
        if token.kind in (Kind.STOP, Kind.ARROW) or token.text in ENDS_CLAUSE:
            yield clause
            clause = []
    if clause:
        yield clause


def _sentences(line: Sequence[Token]) -> Iterator[tuple[tuple[Token, ...], bool]]:
    """For every token of a line: its sentence, and whether that denies something or speaks of what does not happen."""
    sentence: list[Token] = []
    for at, token in enumerate(line):
        sentence.append(token)
        if token.kind is Kind.STOP or at == len(line) - 1:
            described = tuple(sentence), _is_unreal(sentence)
            yield from (described for _ in sentence)
            sentence = []


def _is_unreal(sentence: Sequence[Token]) -> bool:
    return any(
        token.word.means(Meaning.UNREAL, Meaning.NOT, Meaning.IF)
        or token.lower in ("by", "bez", "li")
        or (token.word.negated and token.word.means(Meaning.MET, Meaning.PAY))
        or _DENIES.fullmatch(token.lower)
        for token in sentence
    )


_DENIES = re.compile(r"ne(?!j)\w{3,20}(?:[íáe]|ou|me|te|lo|la|li|l|no|na|ny)")
"""A verb or a participle that is denied, whatever it is."""


def _clause_shop(clause: Sequence[Token], current: str) -> str:
    shops = shops_in(clause)
    return next(iter(shops)) if len(shops) == 1 else "" if shops else current


def _named_after(clause: Sequence[Token]) -> dict[int, str]:
    """The shops of the amounts in a clause that names them after each amount: "810 Kč v A je víc než 760 Kč v B"."""
    first_shop = next((at for at, token in enumerate(clause) if token.shop), None)
    if first_shop is None or not any(token.is_money for token in clause[:first_shop]):
        return {}
    shops: dict[int, str] = {}
    for at, token in enumerate(clause):
        if not token.is_money:
            continue
        for following in clause[at + 1 : at + 6]:
            if following.is_money or following.kind is Kind.CLOSE:
                break
            if following.shop:
                shops[token.start] = following.shop
                break
    return shops


def _in_order(clause: Sequence[Token]) -> dict[int, str]:
    """ "A a B vyjdou na 5 Kč a 6 Kč": as many amounts after as many shops belong to them in that order."""
    shops = [token.shop for token in clause if token.shop]
    money = [token for token in clause if token.is_money]
    last_shop = max((token.start for token in clause if token.shop), default=-1)
    together = len(shops) > 1 and len(set(shops)) == len(shops) == len(money)
    if not together or any(token.start < last_shop for token in money):
        return {}
    return {token.start: shop for token, shop in zip(money, shops, strict=True)}


# ---- tables


def _read_table(lines: Sequence[Sequence[Token]], rows: list[int], owner: str, claims: Claims) -> None:
    """By columns where the heading names several shops, else by rows."""
    cells = {number: _cells(lines[number]) for number in rows}
    numbers = [number for number in rows if any(_says(cell) for cell in cells[number])]
    if not numbers:
        return
    heading = cells[numbers[0]]
    columns = {at: next(iter(shops_in(cell))) for at, cell in enumerate(heading) if len(shops_in(cell)) == 1}
    by_columns = len(set(columns.values())) > 1
    for number in numbers:
        row = cells[number]
        fits = len(row) == len(heading)
        named = [next(iter(shops_in(cell))) for cell in row if len(shops_in(cell)) == 1]
        of_row = named[0] if named else owner
        for at, cell in enumerate(row):
            if not cell:
                continue
            shop = (columns.get(at, "") if by_columns else of_row) if fits else ""
            label = row[0] if by_columns else heading[at] if fits and number != numbers[0] else []
            _read_cell(cell, label if label is not cell else [], number, shop, claims)


def _cells(line: Sequence[Token]) -> list[list[Token]]:
    cells: list[list[Token]] = [[]]
    for token in line:
        if token.text == "|":
            cells.append([])
        else:
            cells[-1].append(token)
    if cells and not cells[0] and line[0].text == "|" and len(cells) > 1:
        cells = cells[1:]
    if len(cells) > 1 and not cells[-1]:
        cells = cells[:-1]
    return cells


def _says(cell: Sequence[Token]) -> bool:
    return any(token.kind in (Kind.WORD, Kind.SHOP, Kind.NUMBER) for token in cell)


def _read_cell(cell: list[Token], label: list[Token], number: int, shop: str, claims: Claims) -> None:
    line = [*label, *cell]
    in_equation = _of_equations(cell, number, claims, shop)
    clause = Clause(tuple(line), shop, number, _is_unreal(cell), tuple(cell), len(label))
    claims.clauses.append(clause)
    for at, token in enumerate(cell, start=len(label)):
        if token.kind is not Kind.NUMBER:
            continue
        equation, place = in_equation.get(token.start, (-1, ""))
        role = role_of(line, len(label) if place == "result" else at, at) if place != "operand" else Role.OTHER
        if [one.lower for one in label] == ["se", "slevou"]:
            role = Role.AFTER  # a row's heading
        claims.amounts.append(
            Amount(token, shop, role, number, place == "operand", place == "result", equation, True, clause=clause)
        )
