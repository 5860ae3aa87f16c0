"""The word that decides what a clause says of the shops: cheap, dear, saves, wins, buy; and whether it is denied."""

from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.canaries.checks._claims import shops_in
from q36eval.canaries.checks._lexicon import ARTICLES, Meaning, Word, word_set
from q36eval.canaries.checks._tokens import Kind, Token


@dataclass
class Said:
    """A word that says something, its sign (+1: cheaper), and whether it is denied."""

    sign: int
    at: int
    token: Token
    superlative: bool = False
    denied: bool = False
    beats: bool = False


_CORE_ORDER = (
    (Meaning.BEAT,),
    (Meaning.GOOD, Meaning.BAD),
    (Meaning.OVERPAY,),
    (Meaning.SAVE,),
    (Meaning.WIN, Meaning.LOSE),
    (Meaning.WORTH,),
    (Meaning.LESS, Meaning.MORE),
    (Meaning.FAVOUR,),
    (Meaning.CHOOSE,),
)

_NEGATIVE = (Meaning.BAD, Meaning.OVERPAY, Meaning.LOSE, Meaning.MORE)

_DISCOUNT_NEIGHBOURS = 3


def core(clause: Sequence[Token]) -> Said | None:
    """The word that decides what a clause says, by what kind of word it is, and whether it is denied."""
    found: dict[int, list[int]] = {}
    for at, token in enumerate(clause):
        rank = _rank(clause, at, token.word)
        if rank is not None:
            found.setdefault(rank, []).append(at)
    if not found:
        return None
    at = found[min(found)][0]
    word = clause[at].word
    dear = word.means(*_NEGATIVE) and not word.means(Meaning.GOOD, Meaning.SAVE, Meaning.WIN)
    sign = -1 if dear or clause[at].lower == "nad" else 1
    if any(one.lower in ("méně", "míň", "nejméně", "nejmíň") for one in clause[max(0, at - 2) : at]) and not word.means(
        Meaning.LESS
    ):
        sign = -sign
    if word.means(Meaning.SAVE) and any(one.word.means(Meaning.LESS) for one in clause[at + 1 : at + 3]):
        sign = -sign
    if word.means(Meaning.MORE, Meaning.LESS) and any(one.lower.startswith(_IS_KEPT) for one in clause):
        sign = -sign
    said = Said(sign, at, clause[at], superlative=word.superlative or clause[at].lower.startswith("nej"))
    said.beats = word.means(Meaning.BEAT)
    said.denied = negations(clause, at) % 2 == 1
    if says_nobody(clause):
        said.denied = not said.denied
    return said


def _rank(clause: Sequence[Token], at: int, word: Word) -> int | None:
    if clause[at].lower == "místo" and at and clause[at - 1].lower.startswith("prvn"):
        return 4
    if clause[at].lower in ("pod", "nad") and compares_costs(clause, at):
        return 6  # "o 45 Kč pod cenou A"
    if clause[at].lower == "navíc" and not (at and clause[at - 1].kind in (Kind.NUMBER, Kind.CURRENCY)):
        return None  # "navíc dává dalších 20 %"
    if _is_degree(clause, at) or _is_of_limit(clause, at):
        return None
    if word.superlative and at and clause[at - 1].lower.startswith(("druh", "třet")):
        return None  # "druhý nejlevnější"
    for rank, meanings in enumerate(_CORE_ORDER):
        if not word.means(*meanings):
            continue
        if meanings[0] is Meaning.CHOOSE and (not word.active or _is_needed(clause)):
            return None  # "koupíte", and a condition: "je potřeba nakoupit"
        if meanings[0] is Meaning.CHOOSE and _of_its_discount(clause, at):
            return None
        if meanings[0] in (Meaning.LESS, Meaning.GOOD) and _of_discount_or_number(clause, at):
            return None
        return rank
    return None


def _is_needed(clause: Sequence[Token]) -> bool:
    """ "je potřeba nakoupit", "museli byste koupit": a condition, no advice."""
    return any(one.word.means(Meaning.ONLY) or one.lower.startswith(("potřeb", "musel")) for one in clause)


def _is_degree(clause: Sequence[Token], at: int) -> bool:
    """ "více než o polovinu nižší", "méně než dvakrát": how much, not which."""
    if not clause[at].word.means(Meaning.MORE, Meaning.LESS) or len(clause) < at + 3 or clause[at + 1].lower != "než":
        return False
    if at and clause[at - 1].lower == "o":
        return True  # "o více než tisíc korun"
    return clause[at + 2].lower in _DEGREES or clause[at + 2].lower.startswith(("polovi", "třeti", "čtvrti", "dvoj"))


def _is_of_limit(clause: Sequence[Token], at: int) -> bool:
    """ "nákup je vyšší než limit": compared with a threshold, not with a shop."""
    if not clause[at].word.means(Meaning.MORE, Meaning.LESS):
        return False
    return any(one.word.means(Meaning.LIMIT) for one in clause[at + 1 : at + 5]) and not _shop_soon(clause, at)


def _shop_soon(clause: Sequence[Token], at: int) -> bool:
    return any(one.shop for one in clause[at + 1 : at + 5])


_DEGREES = word_set("o dvakrát třikrát jednou")
_IS_KEPT = ("peněžen", "kaps", "kapes")
"""Where money that is not spent stays: more of it is better."""


def _of_its_discount(clause: Sequence[Token], at: int) -> bool:
    """ "slevu nelze využít": a discount is made use of, no shop is chosen."""
    chosen = clause[at].lower
    if not chosen.startswith(("využ", "nevyuž")) or chosen in ("využijte", "využij"):
        return False
    return any(one.word.means(Meaning.DISCOUNT) for one in clause)


def compares_costs(clause: Sequence[Token], at: int) -> bool:
    by = any(token.lower == "o" for token in clause[max(0, at - 3) : at])
    return by and any(token.word.means(Meaning.COST) for token in clause[at + 1 : at + 3])


def _of_discount_or_number(clause: Sequence[Token], at: int) -> bool:
    """Whether "bigger", "lower", "better" speaks of a discount, or compares with a number."""
    following = clause[at + 1 : at + 1 + _DISCOUNT_NEIGHBOURS]
    predicate = clause[at].word.means(Meaning.GOOD) and bool(following) and following[0].word.means(Meaning.COPULA)
    for one in following:
        if one.word.means(Meaning.DISCOUNT):
            return not (predicate and _shop_soon(clause, at + 1))  # "nejvýhodnější je sleva v obchodě C"
        if one.word.means(Meaning.COST, Meaning.PAY, Meaning.SAVE, Meaning.THAN) or one.shop:
            break
    if len(following) > 1 and following[0].word.means(Meaning.THAN) and following[1].kind is Kind.NUMBER:
        if clause[at].word.means(Meaning.LESS, Meaning.MORE):
            return not any(one.lower == "o" for one in clause[max(0, at - 2) : at])
        return not any(one.word.means(Meaning.DISCOUNT) for one in clause)
    if not clause[at].word.means(Meaning.LESS, Meaning.MORE):
        return False
    subject = [one for one in clause[:at] if one.word.means(Meaning.DISCOUNT, Meaning.COST, Meaning.PAY)]
    return bool(subject) and subject[-1].word.means(Meaning.DISCOUNT) and not _after_po(clause, subject[-1])


def _after_po(clause: Sequence[Token], discount: Token) -> bool:
    at = next(at for at, token in enumerate(clause) if token.start == discount.start)
    return any(one.lower in ("po", "se") for one in clause[max(0, at - 3) : at])


def negations(clause: Sequence[Token], core: int) -> int:
    """How often what is said is denied; a "ne" before a shop denies the shop alone."""
    count = 0
    for at, token in enumerate(clause):
        word = token.word
        if token.lower in ("ne", "nikoli", "nikoliv", "nýbrž"):
            following = clause[at + 1 : at + 4]
            shop_next = any(one.shop for one in following if True) and all(
                one.shop or one.lower in ARTICLES for one in following[:1]
            )
            count += token.lower != "nýbrž" and not shop_next
        elif token.lower == "ani":
            continue
        elif word.means(Meaning.NOT) or (word.negated and (word.is_verb or at == core)):
            count += 1
    return count


def says_nobody(clause: Sequence[Token]) -> bool:
    """ "Nikde jinde nezaplatíte méně než v A" denies twice and says that A is the cheapest."""
    nobody = any(token.word.means(Meaning.NOWHERE) for token in clause)
    return nobody and any(token.word.means(Meaning.THAN) for token in clause) and bool(shops_in(clause))


def deny(said: Said) -> Said:
    """The same said of a shop that is denied it."""
    return Said(said.sign, said.at, said.token, said.superlative, not said.denied)


def discount_named(clause: Sequence[Token], said: Said) -> tuple[Token, ...]:
    """The discount that is said to be better, before the word that says it: "pevná sleva 360 Kč je výhodnější"."""
    before = [token for token in clause if token.start < said.token.start]
    if not any(token.word.means(Meaning.DISCOUNT) for token in before):
        return ()
    return tuple(
        token
        for token in before
        if token.kind is Kind.NUMBER or token.lower.startswith(("procent", "pevn", "absolutn", "korunov", "fixn"))
    )
