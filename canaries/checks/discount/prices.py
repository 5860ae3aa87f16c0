"""The amounts in an answer, their shops, and whether their words mark them as a final price."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from q36eval.canaries.checks.discount.tokens import PERCENT, Kind, Token
from q36eval.canaries.checks.discount.words import Meaning, word_set


class Role(IntEnum):
    """The likelihood that an amount is a shop's final price."""

    NONE = 0
    """An operand, a discount, a difference, a threshold."""
    LIST = 1
    """A list price, or a negated price: final only if the right one is the same."""
    PLAIN = 2
    """Without any description."""
    NAMED = 3
    """Directly after its shop."""
    FINAL = 4


@dataclass(frozen=True)
class Amount:
    """A number of the answer. `shop`: its shop, "" if unknown."""

    token: Token
    shop: str
    role: Role


def read_amounts(lines: Sequence[Sequence[Token]]) -> list[Amount]:
    """All amounts of money in the order of the text. A heading with one shop applies to the lines below it."""
    amounts: list[Amount] = []
    owner = ""
    table: list[Sequence[Token]] = []
    for line in [*lines, []]:
        if is_row(line):
            table.append(line)
            continue
        amounts += _of_table(table, owner)
        table = []
        if line:
            of_line, owner = _owner(line, owner)
            amounts += _of_line(line, of_line)
    return amounts


def is_row(line: Sequence[Token]) -> bool:
    """Whether a line belongs to a table."""
    return sum(token.text == "|" for token in line) >= 2 or (bool(line) and line[0].text == "|")


def shops_in(tokens: Sequence[Token]) -> set[str]:
    """The letters of the shops that are named."""
    return {token.shop for token in tokens if token.shop}


# ---- whose an amount is

_CONCLUDES = (
    Meaning.GOOD, Meaning.BAD, Meaning.FAVOUR, Meaning.BEAT, Meaning.DIFFERENCE, Meaning.RANKING, Meaning.SAME
)  # fmt: skip


def _owner(line: Sequence[Token], before: str) -> tuple[str, str]:
    """The shop of a line that names none itself, and the shop of the lines below it."""
    shops = shops_in(line)
    if len(shops) > 1:
        return "", ""
    if shops:
        return (owner := shops.pop()), owner
    concludes = any(token.word.means(*_CONCLUDES) or token.word.superlative for token in line)
    return "" if concludes else before, before


def _of_line(line: Sequence[Token], owner: str) -> Iterator[Amount]:
    current = subject = "" if len(shops_in(line)) > 1 else owner
    unreal = any(token.word.means(Meaning.UNREAL) or token.lower in ("by", "li") for token in line)
    for at, token in enumerate(line):
        if token.shop and not any(one.lower in ("jako", "co", "totéž") for one in line[max(0, at - 3) : at]):
            current = token.shop
            subject = subject if subject and _is_compared(line, at) else current
        elif token.is_money:
            after = line[at + 1 : at + 3]
            follows = bool(after) and after[0].lower in ("v", "ve", "u", "(")  # "810 Kč v A je víc než 760 Kč v B"
            shop, role = (after[-1].shop if follows else ""), _role(line, at, unreal)
            yield Amount(token, shop or current, Role.NAMED if shop and role is Role.PLAIN else role)
        elif token.kind is Kind.STOP:
            current = subject  # "o 400 Kč méně než v obchodě A. Po slevě …"


def _is_compared(tokens: Sequence[Token], at: int) -> bool:
    """Whether `tokens[at]` is a shop that another is compared with: "oproti obchodu A"."""
    return any(one.word.means(Meaning.THAN) for one in tokens[max(0, at - 3) : at])


def _of_table(rows: Sequence[Sequence[Token]], owner: str) -> Iterator[Amount]:
    """By columns if the heading names several shops, else by rows; a row that does not fit has no shop."""
    cells = [_cells(row) for row in rows]
    heading = cells[0] if cells else []
    columns = [shops_in(cell).pop() if len(shops_in(cell)) == 1 else "" for cell in heading]
    by_columns = len({shop for shop in columns if shop}) > 1
    for row in cells:
        named = [shops_in(cell).pop() for cell in row if len(shops_in(cell)) == 1]
        for at, cell in enumerate(row):
            fits = len(row) == len(heading)
            of_row = named[0] if named else owner
            shop = (columns[at] if by_columns else of_row) if fits else ""
            label = (row[0] if by_columns else heading[at]) if fits and row is not heading else []
            line = [*label, *cell] if label is not cell else cell
            for place in range(len(line) - len(cell), len(line)):
                if line[place].is_money:
                    yield Amount(line[place], shop, _role(line, place, unreal=False))


def _cells(line: Sequence[Token]) -> list[list[Token]]:
    cells: list[list[Token]] = [[]]
    for token in line:
        if token.text == "|":
            cells.append([])
        else:
            cells[-1].append(token)
    return cells[line[0].text == "|" : len(cells) - (line[-1].text == "|")]


# ---- what an amount is

_LOOK_BACK = 9
_COUNTED = 20
"""Smaller numbers without a unit are counts ("2 obchody")."""
_OPENS_TERM = (Kind.NUMBER, Kind.CLOSE, Kind.PERCENT)
_FROM = word_set("o z ze od než místo oproti proti ne nikoli nikoliv nad pod do přes alespoň aspoň minimálně")
_BINDS = word_set("má za stojí vyjde vychází na je u v ve s cenou cena kč")
_EXPRESSION = (*_OPENS_TERM, Kind.OPERATOR, Kind.EQUALS, Kind.OPEN)


def _role(line: Sequence[Token], at: int, unreal: bool) -> Role:
    """From the words before an amount or before the equation that makes it."""
    if _is_operand(line, at):
        return Role.NONE
    first = at
    worked_out = any(token.kind is Kind.OPERATOR for token in line[max(0, at - _LOOK_BACK) : at])
    is_result = at > 0 and (line[at - 1].kind is Kind.EQUALS or (worked_out and line[at - 1].lower == "je"))
    while (
        is_result
        and first > max(0, at - 40)
        and (line[first - 1].kind in _EXPRESSION or line[first - 1].lower in ("z", "ze"))
    ):
        first -= 1
    role = _role_of_words(line, first)
    if (is_result and (role is Role.NONE or line[first].unit == PERCENT)) or (role and unreal):
        return Role.LIST
    return Role.NAMED if is_result and role is Role.PLAIN else role


def _is_operand(line: Sequence[Token], at: int) -> bool:
    """Whether it is part of a sum, a comparison of two numbers or a percentage, or is too small for a price."""
    token = line[at]
    before, after = line[max(0, at - 2) : at], line[at + 1 : at + 3]
    if after and after[0].kind is Kind.OPERATOR and not is_dash(line, at + 1):
        return True
    if before and before[-1].kind is Kind.OPERATOR and not is_dash(line, at - 1):
        return True
    if any(one.kind is Kind.RELATION for one in (*before[-1:], *after[:1])):
        return True
    equals = bool(before) and before[-1].kind is Kind.EQUALS
    return not token.unit and not equals and (token.value <= _COUNTED or token.value.denominator != 1)


def is_dash(line: Sequence[Token], at: int) -> bool:
    """Whether a minus sign is only a separator: "Obchod A – 6 980 Kč", "1 090 Kč – pardon, …"."""
    if line[at].text != "-":
        return False
    before, after = line[at - 1 : at], line[at + 1 : at + 2]
    if not before or before[0].kind not in _OPENS_TERM or not after:
        return True
    return after[0].kind not in (Kind.NUMBER, Kind.OPEN)


def _role_of_words(line: Sequence[Token], at: int) -> Role:
    """From the nearest word before `line[at]` that describes an amount."""
    between = depth = 0
    bound, named = True, False
    for back in range(at - 1, max(-1, at - 1 - _LOOK_BACK), -1):
        token = line[back]
        depth += (token.kind is Kind.CLOSE) - (token.kind is Kind.OPEN)
        named = named or (bool(token.shop) and bound and not _is_compared(line, back))
        if depth < 0:
            continue
        if depth:
            bound = False
            continue
        ends = token.kind in (Kind.STOP, Kind.ARROW) or token.text in tuple(",;|—")
        if ends or token.is_money or (token.kind is Kind.EQUALS and back != at - 1):
            follows = token.kind is Kind.ARROW and back and line[back - 1].is_money
            return Role.FINAL if follows else Role(Role.PLAIN + named)
        if token.unit == PERCENT:
            between += 1
        if token.kind is Kind.WORD:
            role = _role_of_word(line, back, at, between)
            if role is not None:
                return role
            between += 1
            bound = bound and token.lower in _BINDS
    return Role(Role.PLAIN + named)


def _role_of_word(line: Sequence[Token], back: int, at: int, between: int) -> Role | None:
    token, word = line[back], line[back].word
    before = [one.lower for one in line[max(0, back - 3) : back]]
    following = {one.lower for one in line[back + 1 : at]}
    if token.lower in _FROM and between <= 1:
        return Role.NONE
    if word.means(Meaning.DISCOUNT):
        if "po" in before:
            return Role.FINAL if between or line[at - 1].text == ":" else Role.PLAIN
        if {"před", "bez", "se", "s"} & set(before):
            return Role.LIST if {"před", "bez"} & set(before) else Role.PLAIN
        return Role.PLAIN if line[at - 1].lower == "na" or "platí" in following else Role.NONE
    if word.means(Meaning.SAVE, Meaning.DIFFERENCE, Meaning.BAD):
        return Role.NONE
    if word.means(Meaning.ORIGINAL):
        return Role.LIST
    if word.means(Meaning.FINAL):
        return Role.FINAL
    if word.means(Meaning.COST) and not {"po"} & following:
        described = bool(back) and line[back - 1].word.means(Meaning.FINAL, Meaning.ORIGINAL)
        return None if described else Role.PLAIN
    if word.means(Meaning.PAY) and token.lower not in ("platí", "neplatí"):
        return Role.NAMED if back and line[back - 1].shop else Role.PLAIN
    return Role.FINAL if word.means(Meaning.COST) else None
