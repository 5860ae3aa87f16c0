"""A line taken apart into sentences and clauses, and the shops of a clause by the part they play in it."""

import itertools
from collections.abc import Iterator, Sequence

from q36eval.canaries.checks._claims import shops_in
from q36eval.canaries.checks._lexicon import ARTICLES, JOINS, Meaning, word_set
from q36eval.canaries.checks._said import Said, compares_costs, core
from q36eval.canaries.checks._tokens import Kind, Token

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
    return bool(shops_in(tokens[-60:])) and core(tokens[-60:]) is not None


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
    found: set[int] = set()
    for at, token in enumerate(clause):
        if token.lower in ("mezi", "z", "ze"):
            group = [one for one in clause[at + 1 : at + 8] if one.shop]
            gap = [one for one in clause[at + 1 : at + 5] if one.lower in JOINS]
            if len({one.shop for one in group}) > 1 and gap:
                found |= {one.start for one in group[:3]}
                if token.lower != "mezi" and len(group) > 2:
                    found -= {group[-1].start}
    return found


def joined_by_sign(clause: Sequence[Token]) -> bool:
    """ "A/B", "A > B", "A ← B": nobody can tell which is meant."""
    return any(
        one.shop and three.shop and two.kind in (Kind.OPERATOR, Kind.RELATION, Kind.ARROW, Kind.OTHER)
        for one, two, three in zip(clause, clause[1:], clause[2:], strict=False)
    )


def nearest(clause: Sequence[Token], said: Said, targets: list[Token]) -> list[Token]:
    """The first shop after the word, else the last before it, with those that "a" or "i" joins to it."""
    after = [token for token in targets if token.start > said.token.start]
    before = [token for token in targets if token.start < said.token.start]
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
