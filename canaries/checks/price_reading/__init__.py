"""What a Czech price comparison says, read without knowing what is right: `read_answer` returns a `Reading`.

Read in this order: `lexicon` (what words mean) → `tokens` (numbers, shops, words) → `equations` and `roles` (what a sum
makes, what an amount is said to be) → `claims` (whose amounts are) and, beside it, `clauses` → `comparisons` →
`statements` (who is cheaper). Nothing here may import `checks.discount`, which judges what was read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from q36eval.canaries.checks.price_reading.claims import Claims, read_claims, row_lines
from q36eval.canaries.checks.price_reading.clauses import sentences_of
from q36eval.canaries.checks.price_reading.comparisons import Statement
from q36eval.canaries.checks.price_reading.lexicon import Meaning, word_set
from q36eval.canaries.checks.price_reading.statements import read_statements
from q36eval.canaries.checks.price_reading.tokens import Kind, Plain, Token, lines_of, plain


class Unclear(NamedTuple):
    """A line, the word that makes it unclear, and what cannot be told."""

    line: int
    token: Token
    what: str


_EITHER = word_set("popř popřípadě případně resp respektive eventuálně nebo anebo či")
_REVERSED = word_set("obráceně opačně naopak")
_ELSEWHERE = word_set("jinam jinde")
_REPLACES = word_set("má měl mělo měla")


def unclear_places(lines: Sequence[Sequence[Token]]) -> Iterator[Unclear]:
    """Every place whose own words leave open what is meant."""
    for number, line in enumerate(lines):
        for sentence in sentences_of(line):
            unclear = _unclear(sentence)
            if unclear is not None:
                yield Unclear(number, *unclear)


def _unclear(sentence: Sequence[Token]) -> tuple[Token, str] | None:
    words = [token.lower for token in sentence]
    named = any(token.shop for token in sentence)
    says_which = any(token.word.means(Meaning.GOOD, Meaning.BAD) for token in sentence)
    for at, token in enumerate(sentence):
        before = words[max(0, at - 3) : at]
        if token.lower in _EITHER and _between_prices(sentence, at):
            return token, "two prices are named for one shop"
        if token.lower in ("pořadí", "sledu") and {"opačném", "obráceném", "nutně", "jiném", "případně"} & set(before):
            return token, "the order of the shops is left open"
        if token.lower in _REVERSED and (not named or "být" in before) and not says_which:
            return token, "what is the other way round cannot be told"
        if token.lower in ("opačném", "jiném") and words[at + 1 : at + 2] == ["případě"]:
            return token, "the conclusion depends on what is not known"
        if token.lower in _ELSEWHERE and any(word.startswith("patř") for word in before):
            return token, "where an amount belongs cannot be told"
        if token.lower == "toho" and words[at + 1 : at + 4] == [",", "jak", "obchod"]:
            return token, "what applies is left open"
        if token.lower == "i" and words[at + 1 : at + 3] == ["bez", "ní"]:
            return token, "whether the discount applies is left open"
        if token.word.means(Meaning.CORRECTION) and not named and _replaces_a_number(sentence[at:]):
            return token, "which amount is corrected cannot be told"
    return None


def _between_prices(sentence: Sequence[Token], at: int) -> bool:
    """ "525 Kč, popř. 750 Kč": other amounts of money with nothing but signs between."""
    before = [token for token in sentence[max(0, at - 3) : at] if token.kind is not Kind.CURRENCY]
    after = [token for token in sentence[at + 1 : at + 4] if token.kind is not Kind.CURRENCY]
    while before and before[-1].kind in (Kind.BREAK, Kind.OTHER, Kind.OPEN):
        before.pop()
    while after and (after[0].kind in (Kind.BREAK, Kind.OTHER) or after[0].lower in ("jen", "až", "i")):
        after.pop(0)
    if not before or not after:
        return False
    one, other = before[-1], after[0]
    return one.is_money and other.is_money and bool(one.unit and other.unit) and one.value != other.value


def _replaces_a_number(tokens: Sequence[Token]) -> bool:
    """ "má tam být 3 290 Kč, ne 3 275 Kč"."""
    numbers = [token for token in tokens if token.is_money]
    denied = any(one.lower in ("ne", "nikoli", "nikoliv", "místo") for one in tokens)
    return len(numbers) > 1 and denied and any(token.lower in _REPLACES for token in tokens)


@dataclass(frozen=True)
class Correction:
    """Where the answer takes back what it said before: `start` in the plain text, and the line it stands on."""

    start: int
    line: int
    shop: str


@dataclass(frozen=True)
class Reading:
    """Everything that the rules judge."""

    plain: Plain
    lines: list[list[Token]]
    claims: Claims
    statements: list[Statement]
    corrections: list[Correction]
    unclear: list[Unclear]

    def corrected(self, start: int, line: int, shop: str = "") -> bool:
        """Whether what stands at `start` is taken back later, on its line or by a correction that begins a line."""
        for one in self.corrections:
            begins = self.lines[one.line][0].start == one.start
            of_it = not one.shop or not shop or one.shop == shop
            if start < one.start and (line == one.line or (begins and of_it)):
                return True
        return False

    def sentences(self) -> Iterator[tuple[int, str]]:
        """(place, text) of every sentence of two words or more, and of every line that holds several."""
        for line in self.lines:
            start = 0
            for at, token in enumerate(line):
                if token.kind is Kind.STOP or at == len(line) - 1:
                    said = line[start : at + 1]
                    if sum(one.kind in (Kind.WORD, Kind.SHOP, Kind.NUMBER) for one in said) >= 3:
                        yield said[0].start, self.plain.text[said[0].start : said[-1].end]
                    start = at + 1


def read_answer(text: str, ends_with_line: bool = False) -> Reading:
    """Read `text`. Where a fixed last line is demanded it is judged by itself, so its statement is left out."""
    read = plain(text)
    lines = lines_of(read.text)
    if ends_with_line:
        last = max((number for number, line in enumerate(lines) if line), default=-1)
        lines = lines[:last] if last >= 0 else lines
    claims = read_claims(lines)
    statements = read_statements(lines, row_lines(lines))
    return Reading(read, lines, claims, statements, list(_corrections(lines)), list(unclear_places(lines)))


def _corrections(lines: list[list[Token]]) -> Iterator[Correction]:
    for number, line in enumerate(lines):
        for at, token in enumerate(line):
            if not token.word.means(Meaning.CORRECTION) and not _counts_again(line, at):
                continue
            shops = {one.shop for one in line[at:] if one.shop}
            yield Correction(token.start, number, shops.pop() if len(shops) == 1 else "")
            break


def _counts_again(line: list[Token], at: int) -> bool:
    """ "ne, počítám znovu", "ještě jednou": where the sums begin anew."""
    lower = line[at].lower
    if lower.startswith("přepočít"):
        return True
    beside = {token.lower for token in line[max(0, at - 2) : at + 3]}
    counts = any(word.startswith(("počít", "spočít", "počet")) for word in beside)
    return (lower == "znovu" and counts) or (lower == "jednou" and "ještě" in beside and counts)
