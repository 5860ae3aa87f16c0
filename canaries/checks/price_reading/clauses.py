"""Sentences and clauses, the shops of a clause by the part they play, and its predicate.

The predicate is the word that decides what the clause says of the shops: cheap, dear, saves, wins, buy.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from q36eval.canaries.checks.price_reading.claims import shops_in
from q36eval.canaries.checks.price_reading.lexicon import ARTICLES, JOINS, Meaning, Word, word_set
from q36eval.canaries.checks.price_reading.tokens import Kind, Token


@dataclass
class Predicate:
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


def predicate_of(clause: Sequence[Token]) -> Predicate | None:
    """The word that decides what a clause says, by what kind of word it is, and whether it is denied."""
    by_rank: dict[int, list[int]] = {}
    for at, token in enumerate(clause):
        rank = _rank(clause, at, token.word)
        if rank is not None:
            by_rank.setdefault(rank, []).append(at)
    if not by_rank:
        return None
    at = by_rank[min(by_rank)][0]
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
    predicate = Predicate(sign, at, clause[at], superlative=word.superlative or clause[at].lower.startswith("nej"))
    predicate.beats = word.means(Meaning.BEAT)
    predicate.denied = negations(clause, at) % 2 == 1
    if says_nobody(clause):
        predicate.denied = not predicate.denied
    return predicate


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
    predicative = clause[at].word.means(Meaning.GOOD) and bool(following) and following[0].word.means(Meaning.COPULA)
    for one in following:
        if one.word.means(Meaning.DISCOUNT):
            return not (predicative and _shop_soon(clause, at + 1))  # "nejvýhodnější je sleva v obchodě C"
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


def negations(clause: Sequence[Token], predicate_at: int) -> int:
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
        elif word.means(Meaning.NOT) or (word.negated and (word.is_verb or at == predicate_at)):
            count += 1
    return count


def says_nobody(clause: Sequence[Token]) -> bool:
    """ "Nikde jinde nezaplatíte méně než v A" denies twice and says that A is the cheapest."""
    nobody = any(token.word.means(Meaning.NOWHERE) for token in clause)
    return nobody and any(token.word.means(Meaning.THAN) for token in clause) and bool(shops_in(clause))


def deny(predicate: Predicate) -> Predicate:
    """The same said of a shop that is denied it."""
    return Predicate(predicate.sign, predicate.at, predicate.token, predicate.superlative, not predicate.denied)


def discount_named(clause: Sequence[Token], predicate: Predicate) -> tuple[Token, ...]:
    """The discount that is said to be better, before the word that says it: "pevná sleva 360 Kč je výhodnější"."""
    before = [token for token in clause if token.start < predicate.token.start]
    if not any(token.word.means(Meaning.DISCOUNT) for token in before):
        return ()
    return tuple(
        token
        for token in before
        if token.kind is Kind.NUMBER or token.lower.startswith(("procent", "pevn", "absolutn", "korunov", "fixn"))
    )


_TAILS = word_set("přes navzdory kvůli díky vzhledem bez")


def sentences_of(line: Sequence[Token]) -> Iterator[list[Token]]:
    sentence: list[Token] = []
    for token in line:
        sentence.append(token)
        if token.kind is Kind.STOP:
            if len(sentence) > 1:
                yield sentence
            sentence = []
    if sentence:
        yield sentence


def clauses_of(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Between commas, colons, dashes, arrows and parentheses; also before "a" and "ale" where both parts say something
    of a shop. What stands in parentheses comes after the clause that holds it."""
    clause: list[Token] = []
    inner: list[list[Token]] = []
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind is Kind.OPEN:
            depth += 1
            inner.append([token])
        elif token.kind is Kind.CLOSE:
            if depth == 0:
                clause.append(token)
            depth = max(0, depth - 1)
        elif depth:
            inner[-1].append(token)
        elif token.kind in (Kind.BREAK, Kind.ARROW, Kind.STOP) or _is_dash(tokens, at):
            clause.append(token)
            yield clause
            yield from inner
            clause, inner = [], []
        elif token.lower in JOINS or token.word.means(Meaning.BUT):
            if clause and _complete(clause) and _complete(tokens[at + 1 : _clause_end(tokens, at + 1)]):
                yield clause
                yield from inner
                clause, inner = [], []
            clause.append(token)
        else:
            clause.append(token)
    yield clause
    yield from inner


def _is_dash(tokens: Sequence[Token], at: int) -> bool:
    token = tokens[at]
    if token.text != "-" or not 0 < at < len(tokens) - 1:
        return False
    beside = (tokens[at - 1], tokens[at + 1])
    return any(one.kind in (Kind.WORD, Kind.SHOP) for one in beside) and not all(
        one.kind is Kind.SHOP for one in beside
    )


def _clause_end(tokens: Sequence[Token], at: int) -> int:
    end = at
    while end < len(tokens) and end < at + 30 and tokens[end].kind not in (Kind.BREAK, Kind.STOP, Kind.ARROW):
        end += 1
    return end


def _complete(tokens: Sequence[Token]) -> bool:
    return bool(shops_in(tokens[-60:])) and predicate_of(tokens[-60:]) is not None


def without_tail(clause: list[Token]) -> list[Token]:
    """Without "i přes vyšší původní cenu", "s nižší výchozí cenou", where that names no shop."""
    for at, token in enumerate(clause):
        with_price = token.lower in ("s", "se") and any(
            one.word.means(Meaning.ORIGINAL) for one in clause[at + 1 : at + 4]
        )
        if (token.lower not in _TAILS and not with_price) or is_number_next(clause, at):
            continue
        verb = next((one for one in range(at, len(clause)) if _is_finite(clause[one])), len(clause))
        if at and not shops_in(clause[at:]):
            return clause[:at]
        if verb < len(clause) and not shops_in(clause[at:verb]):
            return clause[:at] + clause[verb:]
    return clause


def _is_finite(token: Token) -> bool:
    return token.word.means(Meaning.COPULA, Meaning.PAY) or token.word.is_verb


def is_number_next(clause: Sequence[Token], at: int) -> bool:
    return at + 1 < len(clause) and clause[at + 1].kind is Kind.NUMBER


def is_aside(clause: Sequence[Token]) -> bool:
    for at, token in enumerate(clause):
        word = token.word
        if word.means(Meaning.ASIDE):
            if token.lower == "pohled" and at + 1 < len(clause) and clause[at + 1].lower == "i":
                continue
            return True
        if word.means(Meaning.ORIGINAL) and not word.means(Meaning.FINAL):
            return True
        following = clause[at + 1 : at + 3]
        if token.lower in ("před", "bez") and any(one.word.means(Meaning.DISCOUNT) for one in following):
            return True
        if token.lower == "i" and following and following[0].lower == "když":
            return True
    return False


_CONCEDES = word_set("ačkoli ačkoliv přestože třebaže byť")
_IN_WHICH_RESPECT = word_set("před bez na sice zdá vypadá")


def concedes_outright(clause: Sequence[Token]) -> bool:
    """ "I když je obchod B levnější": said of the whole, not of a list price, a discount or at first sight."""
    words = [token.lower for token in clause]
    concedes = bool(_CONCEDES & set(words)) or any(
        one == "i" and two == "když" for one, two in itertools.pairwise(words)
    )
    in_some_respect = any(
        token.word.means(Meaning.ORIGINAL, Meaning.DISCOUNT) or token.lower in _IN_WHICH_RESPECT or token.is_money
        for token in clause
    )
    says = any(token.word.means(Meaning.GOOD, Meaning.BAD) for token in clause)
    return concedes and says and bool(shops_in(clause)) and not in_some_respect


def roles_of_shops(clause: Sequence[Token]) -> tuple[list[Token], list[Token], list[Token]]:
    """The shops that a clause may speak of, those that others are compared with, and those that are denied."""
    targets: list[Token] = []
    than: list[Token] = []
    denied: list[Token] = []
    comparing = joined = False
    for at, token in enumerate(clause):
        if _begins_comparison(clause, at):
            comparing = True
        elif token.shop:
            if comparing or joined:
                than.append(token)
                comparing, joined = False, True
            elif _is_denied(clause, at):
                denied.append(token)
            else:
                targets.append(token)
        elif joined and token.lower not in JOINS and token.lower not in ARTICLES and token.kind is Kind.WORD:
            joined = False
    partition = _partition(clause)
    return [token for token in targets if token.start not in partition], than, denied


def _begins_comparison(clause: Sequence[Token], at: int) -> bool:
    token = clause[at]
    following = clause[at + 1 : at + 4]
    if token.lower == "před":
        return any(one.shop for one in following)
    if token.lower in ("nad", "pod", "za"):
        direct = bool(following) and bool(following[0].shop)
        return direct or (compares_costs(clause, at) and any(one.shop for one in following))
    if token.lower in ("srovnání", "porovnání"):
        compared = following[:1] and (following[0].shop or following[0].lower in ("s", "se", "k", "ke"))
        return bool(compared) and at > 0 and clause[at - 1].lower in ("v", "ve", "při", "po")
    if token.lower == "jak":
        comparative = clause[at - 1].word.means(Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE)
        return at > 0 and comparative and any(one.shop for one in following)
    if token.lower in ("co", "jako", "kolik"):
        return any(one.shop for one in following[:2])  # "polovinu toho, co v Áčku"
    if token.lower == "rozdíl":
        return bool(following) and following[0].lower == "od"
    if token.lower == "místo" and at and clause[at - 1].lower.startswith(("prvn", "druh", "třet")):
        return False
    return token.word.means(Meaning.THAN)


def _is_denied(clause: Sequence[Token], at: int) -> bool:
    for before in reversed(clause[max(0, at - 3) : at]):
        if before.lower in ("ne", "nikoli", "nikoliv"):
            return True
        if before.lower not in ARTICLES:
            return False
    return False


def _partition(clause: Sequence[Token]) -> set[int]:
    """Places of the shops in "mezi A a B", "z obchodů A a B"."""
    places: set[int] = set()
    for at, token in enumerate(clause):
        if token.lower in ("mezi", "z", "ze"):
            group = [one for one in clause[at + 1 : at + 8] if one.shop]
            gap = [one for one in clause[at + 1 : at + 5] if one.lower in JOINS]
            if len({one.shop for one in group}) > 1 and gap:
                places |= {one.start for one in group[:3]}
                if token.lower != "mezi" and len(group) > 2:
                    places -= {group[-1].start}
    return places


def joined_by_sign(clause: Sequence[Token]) -> bool:
    """ "A/B", "A > B", "A ← B": nobody can tell which is meant."""
    return any(
        one.shop and three.shop and two.kind in (Kind.OPERATOR, Kind.RELATION, Kind.ARROW, Kind.OTHER)
        for one, two, three in zip(clause, clause[1:], clause[2:], strict=False)
    )


def nearest(clause: Sequence[Token], predicate: Predicate, targets: list[Token]) -> list[Token]:
    """The first shop after the word, else the last before it, with those that "a" or "i" joins to it."""
    after = [token for token in targets if token.start > predicate.token.start]
    before = [token for token in targets if token.start < predicate.token.start]
    if not after and not before:
        return []
    places = {token.start: at for at, token in enumerate(clause)}
    group = [after[0]] if after else [before[-1]]
    rest = after[1:] if after else before[-2::-1]
    for token in rest:
        low, high = sorted((places[token.start], places[group[-1].start]))
        between = clause[low + 1 : high]
        joins = any(one.lower in JOINS for one in between)
        if not joins or not all(one.lower in JOINS or one.lower in ARTICLES for one in between):
            break
        group.append(token)
    return group
