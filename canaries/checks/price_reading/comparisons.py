"""A statement about the shops; statements about several at once: that they cost the same, their order by price."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from q36eval.canaries.checks.price_reading.claims import shops_in
from q36eval.canaries.checks.price_reading.clauses import Predicate, negations
from q36eval.canaries.checks.price_reading.lexicon import Meaning
from q36eval.canaries.checks.price_reading.tokens import Kind, Token


class Says(StrEnum):
    """What a statement says of its shops."""

    CHEAPER = "cheaper"
    DEARER = "dearer"
    NOT_CHEAPER = "not cheaper"
    NOT_DEARER = "not dearer"
    SAME = "same"
    SAME_DISCOUNT = "same discount"
    MORE_DISCOUNT = "more discount"
    LESS_DISCOUNT = "less discount"
    ORDER = "order"
    """A ranking, the cheapest first."""
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Statement:
    """One statement. `shops`: of whom (a tie: all where empty); `than`: whom they are compared with, where named.

    `token` is the shop's, or the word that says it; `sentence` where its sentence begins; `labelled`: a bare shop after
    a heading such as "Závěr:", which says it without a word; `bare`: a shop that stands alone.
    """

    says: Says
    shops: tuple[str, ...]
    than: frozenset[str]
    token: Token
    line: int
    sentence: int
    superlative: bool = False
    bare: bool = False
    hedged: bool = False
    amounts: frozenset[Fraction] = frozenset()
    """The amounts that its clause names."""
    saves: bool = False
    """It says that one saves."""
    subject: tuple[Token, ...] = ()
    """Where no shop is named: the tokens that may name one by its discount."""


@dataclass
class Sentence:
    """What of a sentence is known so far."""

    line: int
    start: int
    named: list[str] = field(default_factory=list)
    """Shops that may be spoken of, in order."""
    last: list[Token] = field(default_factory=list)
    """The shops that the last clause with any spoke of."""
    pending: Predicate | None = None
    """A word that said something of a shop that is still to come."""
    labelled: bool = False
    hedged: bool = False
    denied: bool = False
    of_discount: bool = False
    """The last clause that named a price or a discount named a discount."""
    seeks: bool = False
    """ "Tam, kde …": what is pointed at follows."""
    mentioned: list[str] = field(default_factory=list)
    """All shops, in whatever role."""


_CONSIDERABLE = ("velk", "výrazn", "značn", "podstatn", "zásadn", "propastn")


def equality_word(clause: Sequence[Token], predicate: Predicate | None) -> Token | None:
    """The word by which a clause says that shops, or their discounts, are equal."""
    about = any(token.word.means(Meaning.ABOUT) or token.lower in ("prakticky", "jako") for token in clause)
    times_denied = negations(clause, -1)
    if any(token.lower.startswith(_CONSIDERABLE) for token in clause):
        return None  # "rozdíl není velký"
    for at, token in enumerate(clause):
        word = token.word
        starts_there = (
            at > 0
            and clause[at - 1].lower in ("z", "ze")  # "vycházejí ze stejné ceny"
            and any(one.lower.startswith(("vycház", "začín", "odečít", "odečt", "počít")) for one in clause[:at])
        )
        if word.means(Meaning.SAME) and not word.negated and times_denied % 2 == 0 and not about and not starts_there:
            return token
        if word.means(Meaning.DIFFER) and (word.negated or times_denied % 2 == 1):
            return token
        following = clause[at + 1 : at + 7]
        nothing = any(
            (one.kind is Kind.NUMBER and one.value == 0) or one.lower in ("žádný", "nulový", "není")
            for one in following
        )
        just_before = any(one.lower in ("žádný", "nulový", "není") for one in clause[max(0, at - 2) : at])
        if word.means(Meaning.DIFFERENCE) and (nothing or just_before):
            return token
    nobody = [token for token in clause if token.word.means(Meaning.NOWHERE) or token.lower == "ani"]
    if predicate is not None and predicate.denied and nobody and not shops_in(clause):
        return nobody[0]
    return None


def tie(clause: Sequence[Token], same: Token, state: Sentence) -> Iterator[Statement]:
    shops = [token for token in clause if token.shop]
    letters = tuple(dict.fromkeys(token.shop for token in shops or state.last))
    letters = letters if shops or len(letters) > 1 else ()  # "obchod B a obchod C – shodně"
    price = any(
        token.word.means(Meaning.COST, Meaning.PAY, Meaning.FINAL, Meaning.AFTER, Meaning.DIFFERENCE, Meaning.GOOD)
        for token in clause
    )
    discounts = any(token.word.means(Meaning.DISCOUNT) for token in clause)
    both = any(token.word.means(Meaning.BOTH) for token in clause)
    if discounts and not price:
        if any(token.lower == "po" for token in clause):
            return
        yield Statement(Says.SAME_DISCOUNT, letters, frozenset(), same, state.line, state.start, hedged=state.hedged)
        return
    words = sum(token.kind is Kind.WORD for token in clause)
    if not price and not both and words > 4 and len(letters) < 2:
        return
    if len(letters) == 1 and not both:
        letters = (*(shop for shop in state.named[-1:] if shop not in letters), *letters)
        if len(letters) < 2 or any(token.kind is Kind.EQUALS or token.is_money for token in clause):
            return
    yield Statement(Says.SAME, letters, frozenset(), same, state.line, state.start, hedged=state.hedged)


def _places_of(sentence: Sequence[Token], state: Sentence) -> Statement | None:
    """ "1. místo: B, 2. místo: C, 3. místo: A"."""
    places = [at for at, token in enumerate(sentence) if token.lower == "místo" and _is_numbered(sentence, at)]
    ranks = [_number_before(sentence, at) for at in places]
    left = set(range(1, len(places) + 1)) - {rank for rank in ranks if rank is not None}
    if ranks.count(None) > 1 or len(left) != ranks.count(None):
        return None
    by_rank = sorted((left.pop() if rank is None else rank, at) for rank, at in zip(ranks, places, strict=True))
    shops = [next((one for one in sentence[at + 1 : at + 4] if one.shop), None) for _, at in by_rank]
    named = [shop for shop in shops if shop is not None]
    letters = tuple(dict.fromkeys(token.shop for token in named))
    if len(letters) < 2 or len(letters) < len(places):
        return None
    return Statement(Says.ORDER, letters, frozenset(), named[0], state.line, state.start, hedged=state.hedged)


def _number_before(sentence: Sequence[Token], at: int) -> int | None:
    """The number that stands before a place; None of the first, whose number is read as a list's mark."""
    number = next((one for one in reversed(sentence[max(0, at - 2) : at]) if one.kind is Kind.NUMBER), None)
    return None if number is None else int(number.value)


def _is_numbered(sentence: Sequence[Token], at: int) -> bool:
    return at == 0 or sentence[at - 1].text == "." or sentence[at - 1].kind is Kind.NUMBER


def listed_ranking(lines: Sequence[Sequence[Token]], heading: int) -> tuple[Statement, frozenset[int]] | None:
    """A heading ("Pořadí od nejlevnějšího:") and the lines below it that begin with one shop each, or with several that
    cost the same: the order that they state, and those lines."""
    line = lines[heading]
    dearest_first = any(token.word.means(Meaning.BAD) or token.lower == "sestupně" for token in line)
    cheapest_first = any(token.word.means(Meaning.GOOD, Meaning.LESS) or token.lower == "vzestupně" for token in line)
    if shops_in(line) or dearest_first == cheapest_first or not any(t.word.means(Meaning.RANKING) for t in line):
        return None
    order: list[Token] = []
    numbers = set[int]()
    for number in range(heading + 1, len(lines)):
        if not lines[number]:
            continue
        if not lines[number][0].shop:
            break
        group = _leading_shops(lines[number])
        if {token.shop for token in group} & {token.shop for token in order}:
            return None
        order += group
        numbers.add(number)
    letters = tuple(dict.fromkeys(token.shop for token in order))
    if len(letters) < 2:
        return None
    letters = letters[::-1] if dearest_first else letters
    last = max(numbers)
    return Statement(Says.ORDER, letters, frozenset(), order[0], last, order[0].start), frozenset(numbers)


def _leading_shops(line: Sequence[Token]) -> list[Token]:
    """The shop that a line begins with, and those that "a" joins to it."""
    shops = [line[0]]
    for joint, token in zip(line[1::2], line[2::2], strict=False):
        if joint.lower not in ("a", "i", ",") or not token.shop:
            break
        shops.append(token)
    return shops


def ranking_of(sentence: list[Token], state: Sentence) -> tuple[Statement | None, list[Token]]:
    """A list of all shops in order of price, and what is left of the sentence."""
    head = next((at for at, token in enumerate(sentence) if token.word.means(Meaning.RANKING)), None)
    if head is None:
        places = _places_of(sentence, state)
        last = max(at for at, token in enumerate(sentence) if token.shop) if places is not None else -1
        return places, sentence[last + 1 :]
    first = next((at for at, token in enumerate(sentence) if token.shop and at > head), None)
    if first is None:
        return None, sentence
    order = [sentence[first]]
    end = first + 1
    while end < len(sentence):
        token = sentence[end]
        if token.shop:
            order.append(token)
        elif (
            (token.kind is Kind.WORD and token.lower not in ("a", "i", "pak", "potom", "nakonec", "obchod", "místo"))
            or token.kind is Kind.STOP
            or (token.text == "-" and len({one.shop for one in order}) > 1)
        ):
            break
        end += 1
    between = sentence[head:first]
    dearest_first = any(token.word.means(Meaning.BAD) or token.lower == "sestupně" for token in between)
    cheapest_first = any(
        token.word.means(Meaning.GOOD, Meaning.LESS) or token.lower == "vzestupně" for token in between
    ) or any(token.kind is Kind.NUMBER and token.value == 1 for token in between)
    letters = tuple(dict.fromkeys(token.shop for token in order))
    if len(letters) < 2:
        return None, sentence
    if dearest_first:
        letters = letters[::-1]
    says = Says.ORDER if dearest_first or cheapest_first else Says.UNCLEAR
    statement = Statement(says, letters, frozenset(), order[0], state.line, state.start, hedged=state.hedged)
    return statement, sentence[end:]
