"""Czech price comparisons, judged claim by claim: amounts, equations, discounts and conclusions.

The point is the regression that a published card describes: the intermediate calculation was right and the final
comparison was flipped. So wrong numbers, a wrong conclusion and a missing one have codes of their own. What cannot be
attributed or interpreted is unreadable, unless something else is plainly wrong.
"""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from q36eval.canaries.checks.base import Check, Decision, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks.discount.amounts import AmountRules
from q36eval.canaries.checks.discount.conclusions import WRONG_CONCLUSION, conclusion, conclusion_failures, deciding
from q36eval.canaries.checks.discount.offers import TIE, Offer, Shop, decision
from q36eval.canaries.checks.language import foreign_sentences
from q36eval.canaries.checks.price_reading import Reading, read_answer
from q36eval.canaries.checks.price_reading.claims import COMPARES
from q36eval.canaries.checks.price_reading.comparisons import Says, Statement
from q36eval.canaries.checks.price_reading.lexicon import Meaning, word_set
from q36eval.canaries.checks.price_reading.tokens import Kind

MAX_CHARACTERS = 12_000
"""A comparison of a few prices never takes so many; a longer answer ran away and is not read."""

LAST_LINE = "Rozhodnutí: "
TIE_ON_LAST_LINE = "stejně"
MAX_REPEATED = 3
"""A sentence that is said more often goes round in a loop."""

_FOREIGN = re.compile(
    r"(?<!\w)(?:the|is|shop|store|price|discount|cheaper|costs?|total|therefore|savings?|lacnejší\w*|lacnejšie|zľava"
    r"|zľavy|výhodnejší\w*|rozhodnutie|obchode|tańsz\w+|sklep\w*|zniżk\w+|rabatt|günstiger|billiger|preis|laden)(?!\w)",
    re.IGNORECASE,
)


class ExpectedDiscount(Expected):
    """`offers`: per shop its list price and its discounts, one after the other; everything else follows from them.

    `last_line`: the prompt demands that the last line be exactly "Rozhodnutí: A" (or another shop, or "stejně").
    `own_lines`: it demands that each shop be worked out on a line of its own.
    """

    offers: Annotated[dict[Shop, Offer], Field(min_length=2)]
    last_line: bool = False
    own_lines: bool = False

    @property
    def decision(self) -> str:
        """The cheapest shop, or `tie`."""
        return decision(self.offers)


def _failure(code: str, place: str, message: str) -> Failure:
    return Failure("discount", code, place, message)


def _discount(text: str, expected: ExpectedDiscount, tools: Tools) -> Iterator[Failure]:
    if len(text) > MAX_CHARACTERS:
        yield _failure("too_long", "answer", f"{len(text)} characters: not read")
        return
    reading = read_answer(text, ends_with_line=expected.last_line)
    yield from _language_failures(text, reading)
    yield from _loops(text, reading)
    yield from _cut_off(text, reading)
    rules = AmountRules(text, reading, expected.offers)
    yield from rules.failures()
    if expected.own_lines and rules.on_one_line():
        yield _failure("one_line", "answer", "the shops are worked out on one line, not each on its own")
    if expected.last_line:
        yield from _last_line_failures(text, expected)
    yield from conclusion_failures(text, reading, expected.offers, rules.worked_out_line, needed=not expected.last_line)


def _language_failures(text: str, reading: Reading) -> Iterator[Failure]:
    words = sum(token.kind in (Kind.WORD, Kind.SHOP) for line in reading.lines for token in line)
    foreign = list(_FOREIGN.finditer(text))
    if len(foreign) >= 2 and len(foreign) * 6 >= words:
        place = place_of(text, foreign[0].start())
        yield _failure("wrong_language", place, f"{shown(foreign[0].group())} is not Czech")
        return
    for sentence in foreign_sentences(text, "cs"):
        place = place_of(text, sentence.piece.start)
        yield _failure("wrong_language", place, f"is in {sentence.language}, not in Czech")
        return


def _loops(text: str, reading: Reading) -> Iterator[Failure]:
    """A sentence or a line that comes again and again."""
    seen: dict[str, int] = {}
    for at, said in reading.sentences():
        seen[said] = seen.get(said, 0) + 1
        if seen[said] > MAX_REPEATED:
            yield _failure("repetition", place_of(text, reading.plain.original(at)), f"goes round in {shown(said)}")
            return


_OPEN_ENDED = word_set("""je v ve u o a i s z že než ale obchod obchodě obchodu protože kde který pro na za""")


def _cut_off(text: str, reading: Reading) -> Iterator[Failure]:
    """An end in mid-sentence: "kde vás lampa vyjde o 1 020 Kč", "Výhodnější je"."""
    line = next((line for line in reversed(reading.lines) if line), None)
    if line is None or line[-1].kind is Kind.STOP:
        return
    start = max((at for at, token in enumerate(line) if token.kind in (Kind.BREAK, Kind.STOP)), default=-1) + 1
    clause = line[start:]
    last = line[-1]
    dangling = (last.kind is Kind.WORD and last.lower in _OPEN_ENDED) or last.text in (",", "(")
    by = any(token.lower == "o" for token in clause[-4:-1]) and clause[-1].kind is Kind.NUMBER
    verb = any(token.word.means(Meaning.PAY, Meaning.COPULA) for token in clause)
    compared = any(token.word.means(*COMPARES) for token in clause)
    if dangling or (by and verb and not compared):
        place = place_of(text, reading.plain.original(last.start))
        yield _failure("cut_off", place, f"the answer breaks off at {shown(last.text)}")


def _last_line_failures(text: str, expected: ExpectedDiscount) -> Iterator[Failure]:
    said = next((line for line in reversed(text.split("\n")) if line.strip()), "").rstrip()
    start = text.rfind(said) if said else 0
    place = place_of(text, max(0, start))
    decided = said.removeprefix(LAST_LINE)
    allowed: dict[str, str] = {TIE_ON_LAST_LINE: TIE} | {str(shop): str(shop) for shop in expected.offers}
    if not said.startswith(LAST_LINE) or decided not in allowed:
        yield _failure("wrong_last_line", place, f"{shown(said)} is not exactly {LAST_LINE!r} and a shop or a tie")
    elif allowed[decided] != expected.decision:
        message = f"decides for {allowed[decided]}, right is {expected.decision}"
        yield _failure(WRONG_CONCLUSION, place, message)


# ---- decisions


def _decide_discount(text: str, expected: ExpectedDiscount, tools: Tools) -> list[Decision]:
    """Every amount where it is first worked out, and the shop, or the words that say that there is none."""
    reading = read_answer(text, ends_with_line=expected.last_line)
    decided = []
    for shop, offer in expected.offers.items():
        for value in offer.way:
            same = [
                amount
                for amount in reading.claims.amounts
                if amount.shop == shop and amount.token.value == value and amount.token.is_money
            ]
            worked_out = [amount for amount in same if amount.result]
            for amount in (worked_out or same)[:1]:
                decided.append(_place(reading, "amount", amount.token.start, amount.token.end))
    return [*decided, *_conclusion_decision(text, reading, expected)]


def _place(reading: Reading, kind: str, start: int, end: int, wrong: tuple[str, ...] = ()) -> Decision:
    return Decision(kind, reading.plain.original(start), reading.plain.original(end - 1) + 1, wrong)


def _conclusion_decision(text: str, reading: Reading, expected: ExpectedDiscount) -> Iterator[Decision]:
    if expected.last_line:
        start = text.rstrip().rfind(LAST_LINE) + len(LAST_LINE)
        end = len(text.rstrip())
        others = [*expected.offers, TIE_ON_LAST_LINE]
        yield Decision("conclusion", start, end, tuple(other for other in others if other != text[start:end]))
        return
    decided: Statement | None = deciding(reading, expected.offers)
    if decided is None:
        return
    if decided.says is Says.SAME:
        # a tie is decided at the sentence's first word: there the answer could have begun to name a shop
        cheaper = "Levnější" if len(expected.offers) == 2 else "Nejlevnější"
        wrong = tuple(f"{cheaper} je obchod {shop}" for shop in expected.offers)
        yield _place(reading, "conclusion", decided.sentence, decided.token.end, wrong)
        return
    # the shop that is named; where only the dearer one is, another than the cheaper
    named = decided.token
    others = [shop for shop in expected.offers if shop != named.shop]
    yield _place(reading, "conclusion", named.end - 1, named.end, tuple(others))


discount = Check("discount", ExpectedDiscount, _discount, _decide_discount)

__all__ = ["WRONG_CONCLUSION", "ExpectedDiscount", "conclusion", "discount"]
