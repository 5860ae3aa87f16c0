"""An answer's conclusion, read clause by clause: the cheapest shop by its last statement, or a tie.

A clause is read by its predicate (the word for cheap, expensive, save, win, buy), the shops that it may be about or
compare with, and its negations. A clause that concedes or supposes something has no conclusion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise, takewhile

from q36eval.canaries.checks.discount.offers import TIE
from q36eval.canaries.checks.discount.prices import is_dash, is_row, shops_in
from q36eval.canaries.checks.discount.tokens import Kind, Token
from q36eval.canaries.checks.discount.words import ARTICLES, JOINS, Meaning, word_set

MAX_TOKENS = 60
"""The maximum of tokens of a clause for deciding whether it is complete."""


@dataclass(frozen=True)
class Conclusion:
    """`decides`: a shop's letter, `tie`, or "" if the preference between the shops is unclear.

    `token` is the shop's, or the deciding word; `sentence` is the start of its sentence.
    """

    decides: str
    token: Token
    sentence: int


@dataclass(frozen=True)
class _Predicate:
    """A word that calls a shop cheaper (or more expensive), and whether it is negated."""

    token: Token
    cheaper: bool
    denied: bool


@dataclass
class _Sentence:
    """The known parts of a sentence."""

    shops: frozenset[str]
    start: int
    named: list[Token] = field(default_factory=list)
    """Shops that it mentioned."""
    previous: list[Token] = field(default_factory=list)
    """The last shops in the previous sentence."""
    pending: _Predicate | None = None
    """A statement about a shop that is not named yet."""
    labelled: bool = False
    """"Závěr:" precedes it."""
    denied: bool = False
    """It negates the following text: "nelze říci, že …"."""
    alone: bool = False
    """It has no amount and ends the answer: a single shop name is then its conclusion."""


def read_conclusions(lines: Sequence[Sequence[Token]], shops: frozenset[str]) -> list[Conclusion]:
    """Every statement that decides between `shops` or that cannot be understood, in the order of the text.

    "The second one" is ambiguous if the answer names the shops in another order than the prompt.
    """
    read: list[Conclusion] = []
    before = _Sentence(shops, 0)
    joined = _with_lists(lines)
    for number, line in enumerate(joined, start=1):
        before.pending = before.pending if number == len(joined) else None
        for sentence in [] if is_row(line) else _sentences(line):
            last = before.named[-1:] or before.previous
            state = _Sentence(shops, sentence[0].start, [], last, before.pending, before.labelled)
            state.alone = number == len(joined)
            if "?" in sentence[-1].text:
                state.pending = _predicate(sentence)
                state.labelled = any(token.word.means(Meaning.LABEL) for token in sentence)
            else:
                read += _read_sentence(sentence, state)
            before = state
    final = list(_sentences(joined[-1])) if joined and not read and not is_row(joined[-1]) else []
    for last in final[-1:]:
        means = {meaning for token in last for meaning in token.word.meanings}
        said = means & _COMPARES or not any(token.is_money for token in last)
        if said and Meaning.DISCOUNT not in means and shops_in(last) and "?" not in last[-1].text:
            read = [Conclusion("", last[0], last[0].start)]
    order = list(dict.fromkeys(token.shop for line in lines for token in line if token.shop and not token.ordinal))
    return [replace(one, decides="") if one.token.ordinal and order != sorted(order) else one for one in read]


def _with_lists(lines: Sequence[Sequence[Token]]) -> list[list[Token]]:
    """The lines, those of a ranking joined to its heading: "Pořadí od nejlevnějšího:"."""
    joined: list[list[Token]] = []
    for line in lines:
        heading = bool(joined) and any(token.word.means(Meaning.RANKING) for token in joined[-1])
        if heading and line and line[0].shop:
            joined[-1] += line
        elif line:
            joined.append(list(line))
    return joined


def _sentences(line: Sequence[Token]) -> Iterator[list[Token]]:
    start = 0
    for at, token in enumerate(line, start=1):
        if token.kind is Kind.STOP or at == len(line):
            sentence = list(dropwhile(lambda one: one.kind in (Kind.OPERATOR, Kind.STOP), line[start:at]))
            if sentence:  # without the dash of "- Vyjde …"
                yield sentence
            start = at


def _unclear(sentence: Sequence[Token], state: _Sentence) -> Conclusion:
    return Conclusion("", next((token for token in sentence if token.shop), sentence[0]), state.start)


# ---- one sentence


def _read_sentence(sentence: list[Token], state: _Sentence) -> list[Conclusion]:
    explained = {at for at in range(len(sentence)) if _is_explained(sentence, at)}
    sentence = _real([one for at, one in enumerate(sentence) if not {at, at - 1} & explained])
    if any(token.word.means(Meaning.UNREAL) for token in sentence):
        advises = any(token.word.means(Meaning.LABEL) or token.lower == "kdybych" for token in sentence)
        return [_unclear(sentence, state)] if advises and shops_in(sentence) else []
    state.alone = state.alone and not any(token.is_money for token in sentence)
    hedged = sentence[-1].text in ("…", "...") or any(token.word.means(Meaning.HEDGE) for token in sentence)
    ranking = _ranking(sentence, state)
    if ranking is not None:
        return [ranking]
    read: list[Conclusion] = []
    any_predicate = supposed = False
    for clause in _clauses_of(sentence):
        supposes = any(token.word.means(Meaning.IF) and token.lower != "když" for token in clause)
        supposed = supposes and (supposed or not state.named)
        if supposed:
            continue
        read += _read_clause(clause, state)
        predicate = None if _is_aside(clause) else _predicate(clause)
        any_predicate = any_predicate or (predicate is not None and not predicate.token.word.means(Meaning.SAVE))
    if (any_predicate or hedged) and not read and shops_in(sentence):
        read = [_unclear(sentence, state)]
    return [replace(one, decides="") for one in read] if hedged else read


def _is_explained(sentence: Sequence[Token], at: int) -> bool:
    """Whether the shop itself follows "the second one": "v tom druhém – v A"."""
    following = sentence[at + 1 : at + 5]
    named = any(token.shop and not token.ordinal for token in following)
    return sentence[at].ordinal and named and following[0].text in ("-", ",", "(")


def _real(sentence: list[Token]) -> list[Token]:
    """The true part of "if …, B would be cheaper, as it is A is"; the consequence of "even if …, A would be …"."""
    unreal = [at for at, token in enumerate(sentence) if token.word.means(Meaning.UNREAL)]
    breaks = [at for at, token in enumerate(sentence) if unreal and token.kind is Kind.BREAK and at > unreal[-1]]
    for at in breaks:
        if any(token.lower in ("takhle", "takto") for token in sentence[at + 1 : at + 4]):
            return sentence[at + 1 :]
    even = bool(unreal) and unreal[0] > 0 and sentence[unreal[0] - 1].lower in ("i", "ani")
    return sentence[breaks[0] + 1 :] if even and len(unreal) == 1 and breaks else sentence


def _ranking(sentence: list[Token], state: _Sentence) -> Conclusion | None:
    """A list of all shops in order of price: "Pořadí od nejdražšího: …", "1. místo: …, 2. místo: …"."""
    labels = {one.start for one, other in pairwise(sentence) if one.lower == "místo" and other.text == ":"}
    heads = [at for at, one in enumerate(sentence) if one.word.means(Meaning.RANKING) or one.start in labels]
    listed: dict[str, Token] = {}
    for token in sentence[heads[0] :] if heads else []:
        if token.shop:
            listed.setdefault(token.shop, token)
    if not listed or listed.keys() < state.shops:
        return None
    order = list(listed.values())
    words = sentence[heads[0] : sentence.index(order[0])]
    if any(token.word.means(Meaning.BAD) or token.lower == "sestupně" for token in words):
        order = order[::-1]
    elif not any(one.word.means(Meaning.GOOD, Meaning.LESS) or one.lower in ("vzestupně", "místo") for one in words):
        return None
    return Conclusion(order[0].shop, order[0], state.start)


_ENDS_CLAUSE = (Kind.BREAK, Kind.ARROW, Kind.STOP)


def _clauses_of(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at commas, colons, dashes, arrows and parentheses; also before "a" and "ale" if both parts are about a
    shop. A parenthesis follows its clause."""
    clause: list[Token] = []
    inner: list[list[Token]] = []
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind is Kind.OPEN:
            depth += 1
            inner.append([token])
        elif token.kind is Kind.CLOSE:
            depth = max(0, depth - 1)
        elif depth:
            inner[-1].append(token)
        else:
            joins = token.word.means(Meaning.BUT) or (token.kind is Kind.WORD and token.lower in JOINS)
            following = takewhile(lambda one: one.kind not in _ENDS_CLAUSE, tokens[at + 1 : at + MAX_TOKENS])
            if joins and _is_complete(clause) and _is_complete(list(following)):
                yield from (clause, *inner)
                clause, inner = [], []
            clause.append(token)
            if token.kind in _ENDS_CLAUSE or is_dash(tokens, at):
                yield from (clause, *inner)
                clause, inner = [], []
    yield from (one for one in (clause, *inner) if one)


def _is_complete(tokens: Sequence[Token]) -> bool:
    return bool(shops_in(tokens[-MAX_TOKENS:])) and _predicate(tokens[-MAX_TOKENS:]) is not None


# ---- one clause

_SAYS_NOTHING = ARTICLES | word_set(
    """jednoznačně jasně určitě rozhodně konkrétně tak proto takže nakonec právě opět zde cena kč obchod nákup
    samozřejmě celkově těsně a i ano"""
)
_COMPARES = {Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE, Meaning.FAVOUR, Meaning.CHOOSE}
_CORRECTIONS = word_set("pardon oprava opravuji omyl chyba chybně špatně nesprávně spletl spletla omlouvám opak")
_THEREFORE = word_set("tedy takže proto čili")


def _read_clause(clause: list[Token], state: _Sentence) -> Iterator[Conclusion]:
    targets, than, denied = _roles(clause)
    words = {token.lower for token in clause}
    if words & _CORRECTIONS or (targets and state.named and words & {"ne", "vlastně", "respektive"}):
        yield _unclear(clause, state)  # "pardon", "(ne, B)"
    aside = _is_aside(clause)
    predicate = None if aside else _predicate(clause)
    if predicate is not None and state.denied:
        predicate = replace(predicate, denied=not predicate.denied)
    same = None if aside or (predicate is not None and targets) else _equality_word(clause)
    if same is not None:
        yield from _tie(clause, same, state)
    elif predicate is not None:
        yield from _of_predicate(clause, predicate, (targets, than, denied), state)
    elif not aside and targets:
        yield from _without_predicate(clause, targets, state)
    if predicate is None or not predicate.denied:
        state.named += targets
    state.denied = bool(words & {"nelze", "neplatí"} or ("není" in words and words & {"pravda", "správně"}))
    if state.denied and "to" in words:
        yield _unclear(clause, state)  # "to není pravda"
    label = any(token.word.means(Meaning.LABEL) for token in clause) or clause[-1].kind is Kind.ARROW
    state.labelled = (label or state.labelled) and not targets


_Roles = tuple[list[Token], list[Token], list[Token]]


def _of_predicate(
    clause: Sequence[Token], predicate: _Predicate, roles: _Roles, state: _Sentence
) -> Iterator[Conclusion]:
    targets, than, denied = roles
    if predicate.token.word.means(Meaning.BEAT):
        than = [token for token in targets if token.start > predicate.token.start]
        targets = [token for token in targets if token not in than]
    for token in denied:
        yield from _statement(replace(predicate, denied=not predicate.denied), [token], than, state)
    saves = predicate.token.word.means(Meaning.SAVE)  # "Obchod B: 1 450 − 710 = 740 Kč, ušetříte 710 Kč"
    chosen = _nearest(clause, predicate, targets) or ([] if denied or saves else _referred(clause, state))
    if chosen is None:
        yield _unclear(clause, state)
    elif chosen:
        yield from _statement(predicate, chosen, than, state)
        state.pending = replace(predicate, denied=False) if predicate.denied else None
    else:
        state.pending = predicate


def _statement(predicate: _Predicate, chosen: list[Token], than: list[Token], state: _Sentence) -> Iterator[Conclusion]:
    """The decision from a predicate about some shops: none if a shop not mentioned may be cheaper."""
    letters = shops_in(chosen)
    others = state.shops - letters
    compared = shops_in(than) & others
    if predicate.cheaper and not predicate.denied:
        preferred = letters if not compared or compared == others else set()
    else:
        preferred = set(others) if predicate.cheaper or not predicate.denied else set()
    if len(preferred) == 1:
        yield Conclusion(next(iter(preferred)), chosen[0], state.start)


def _referred(clause: Sequence[Token], state: _Sentence) -> list[Token] | None:
    """The shop to which a clause refers without naming it: empty for none, None if ambiguous."""
    points = any(token.word.means(Meaning.POINTS) for token in clause[:-2])  # "tam, kde to máte blíž"
    candidates = state.named or (state.previous if points else [])
    several = len(shops_in(candidates)) > 1 or (points and shops_in(clause) - shops_in(candidates))
    return candidates[-1:] if not several else None if points else []


def _without_predicate(clause: Sequence[Token], targets: list[Token], state: _Sentence) -> Iterator[Conclusion]:
    """A clause with only a shop's name: it completes an earlier one, follows a label, or is a conclusion alone."""
    pending = state.pending
    if len(shops_in(targets)) != 1:
        if len(shops_in(targets)) > 1 and (state.labelled or pending is not None):
            yield _unclear(clause, state)
        return
    others = [token for token in clause if token.kind is Kind.WORD and token.lower not in _SAYS_NOTHING]
    others = [token for token in others if not token.word.means(Meaning.LABEL, Meaning.BUT, Meaning.FINAL)]
    colon = clause[-1].text == ":"
    works_out = any(token.kind is Kind.EQUALS for token in clause)
    if pending is not None and not works_out and not (colon and pending.token.start < state.start) and len(others) <= 5:
        yield from _statement(pending, targets[:1], [], state)
        state.pending = None
        return
    alone = not colon and not works_out and clause[0].kind is not Kind.OPEN and len(others) <= 1
    ends = clause[-1].kind in (Kind.SHOP, Kind.STOP) and not any(token.is_money for token in clause)
    follows = ends and not others and any(token.lower in _THEREFORE for token in clause)
    if alone and (state.labelled or follows or (state.alone and not state.named)):
        yield Conclusion(targets[0].shop, targets[0], state.start)


def _tie(clause: Sequence[Token], same: Token, state: _Sentence) -> Iterator[Conclusion]:
    shops = shops_in(clause)
    price = (Meaning.COST, Meaning.PAY, Meaning.FINAL, Meaning.DIFFERENCE, Meaning.GOOD)
    meanings = {meaning for token in clause for meaning in token.word.meanings}
    short = Meaning.BOTH in meanings or sum(token.kind is Kind.WORD for token in clause) <= 4
    of_prices = meanings & {*price} or (short and Meaning.DISCOUNT not in meanings)
    if of_prices and (Meaning.BOTH in meanings or not shops or shops == state.shops):
        yield Conclusion(TIE, same, state.start)


# ---- predicates

_CORE_ORDER = (
    (Meaning.BEAT,),
    (Meaning.GOOD, Meaning.BAD),
    (Meaning.SAVE,),
    (Meaning.FAVOUR,),
    (Meaning.LESS, Meaning.MORE),
    (Meaning.CHOOSE,),
)


def _predicate(clause: Sequence[Token]) -> _Predicate | None:
    """The deciding word of a clause, by the kind of word, and whether it is negated."""
    ranked = [
        (rank, at) for at, one in enumerate(clause) if one.word.meanings and (rank := _rank(clause, at)) is not None
    ]
    if not ranked:
        return None
    at = min(ranked)[1]
    word = clause[at].word
    dearer = word.means(Meaning.BAD, Meaning.MORE) and not word.means(Meaning.GOOD, Meaning.SAVE, Meaning.FAVOUR)
    less = any(one.lower in ("méně", "míň", "nejméně") for one in clause[max(0, at - 2) : at])
    if less and not word.means(Meaning.LESS):
        dearer = not dearer
    return _Predicate(clause[at], not dearer, _negations(clause, at) % 2 == 1)


def _rank(clause: Sequence[Token], at: int) -> int | None:
    word = clause[at].word
    before = clause[at - 1].lower if at else ""
    if clause[at].lower == "místo" and before.startswith("prvn"):
        return _CORE_ORDER.index((Meaning.FAVOUR,))
    rank = next((rank for rank, meanings in enumerate(_CORE_ORDER) if word.means(*meanings)), None)
    second = word.superlative and before.startswith(("druh", "třet"))  # "druhý nejlevnější"
    degree = word.means(Meaning.MORE, Meaning.LESS) and before == "o"  # "o více než tisíc korun"
    described = word.means(Meaning.CHOOSE) and not word.active  # "koupíte"
    of_discount = word.means(Meaning.LESS, Meaning.MORE, Meaning.GOOD) and _is_of_discount_or_number(clause, at)
    return None if second or degree or described or of_discount else rank


def _is_of_discount_or_number(clause: Sequence[Token], at: int) -> bool:
    """Whether "bigger", "lower", "better" is about a discount, or compares with a number."""
    following = clause[at + 1 : at + 4]
    for one in following:
        if one.word.means(Meaning.DISCOUNT):
            return True
        if one.word.means(Meaning.COST, Meaning.PAY, Meaning.SAVE, Meaning.THAN) or one.shop:
            break
    if len(following) > 1 and following[0].word.means(Meaning.THAN) and following[1].kind is Kind.NUMBER:
        return not any(one.lower == "o" for one in clause[max(0, at - 2) : at])
    if not clause[at].word.means(Meaning.LESS, Meaning.MORE):
        return False
    for back in range(at - 1, max(0, at - MAX_TOKENS) - 1, -1):
        if clause[back].word.means(Meaning.DISCOUNT, Meaning.COST, Meaning.PAY):
            after_po = any(one.lower in ("po", "se") for one in clause[max(0, back - 3) : back])
            return clause[back].word.means(Meaning.DISCOUNT) and not after_po
    return False


def _negations(clause: Sequence[Token], predicate_at: int) -> int:
    """The number of negations of the statement; a "ne" before a shop negates only the shop."""
    count = 0
    for at, token in enumerate(clause):
        if token.lower in ("ne", "nikoli", "nikoliv"):
            following = clause[at + 1 : at + 4]
            count += not (shops_in(following) and (following[0].shop or following[0].lower in ARTICLES))
        elif token.lower not in ("ani", "nýbrž"):
            verb = token.word.negated and (token.word.is_verb or at == predicate_at)
            count += token.word.means(Meaning.NOT) or verb
    return count


def _equality_word(clause: Sequence[Token]) -> Token | None:
    """The word for equal prices in a clause."""
    denied = _negations(clause, -1) % 2 == 1
    if any(token.lower in ("jako", "téměř", "skoro", "velký", "výrazný") for token in clause):
        return None  # "rozdíl není velký"
    words = {token.lower for token in clause}
    nobody = (words & {"žádný", "žádná"} or words >= {"ani", "jeden"}) and not words & {"jiný", "další"}
    for at, token in enumerate(clause):
        word = token.word
        nothing = any(
            (one.kind is Kind.NUMBER and one.value == 0) or one.lower in ("žádný", "nulový", "není")
            for one in clause[max(0, at - 2) : at + 7]
        )
        if (
            (word.means(Meaning.SAME) and not word.negated and not denied)
            or (word.means(Meaning.DIFFER) and (word.negated or denied))
            or (word.means(Meaning.DIFFERENCE) and nothing)
            or (word.means(Meaning.GOOD, Meaning.BAD) and denied and nobody)
        ):
            return token
    return None


# ---- the part that each shop plays


def _is_aside(clause: Sequence[Token]) -> bool:
    """Whether a clause concedes something, or is about the prices before the discounts."""
    outright = any(token.word.means(Meaning.GOOD, Meaning.BAD) for token in clause)
    for one, other in pairwise([*clause, *clause[-1:]]):
        if one.word.means(Meaning.ASIDE) or (one.lower == "i" and other.lower == "když"):
            return True
        undiscounted = one.lower in ("před", "bez") and other.word.means(Meaning.DISCOUNT)
        if (undiscounted or one.word.means(Meaning.ORIGINAL)) and not outright:
            return True
    return False


def _roles(clause: Sequence[Token]) -> _Roles:
    """The shops that a clause may be about, those that others are compared with, and those that are negated."""
    targets: list[Token] = []
    than: list[Token] = []
    denied: list[Token] = []
    comparing = joined = False
    for at, token in enumerate(clause):
        if _begins_comparison(clause, at):
            comparing = True
        elif token.shop and (comparing or joined):
            than.append(token)
            comparing, joined = False, True
        elif token.shop:
            (denied if _is_denied(clause, at) else targets).append(token)
        elif joined and token.lower not in JOINS and token.lower not in ARTICLES and token.kind is Kind.WORD:
            joined = False
    return targets, than, denied


def _begins_comparison(clause: Sequence[Token], at: int) -> bool:
    token, following = clause[at], clause[at + 1 : at + 4]
    before = clause[at - 1] if at else None
    if token.lower in ("před", "za", "nad", "pod"):
        reach = following if token.lower == "před" else following[:1]
        return bool(shops_in(reach))
    if token.lower in ("srovnání", "porovnání"):
        compared = following[:1] and (following[0].shop or following[0].lower in ("s", "se", "k", "ke"))
        return bool(compared) and before is not None and before.lower in ("v", "ve", "při", "po")
    if token.lower == "jak":
        comparative = before is not None and before.word.means(Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE)
        return comparative and bool(shops_in(following))
    if token.lower in ("co", "jako", "kolik"):
        return bool(shops_in(following[:2]))  # "polovinu toho, co v Áčku"
    first_place = token.lower == "místo" and before is not None and before.lower.startswith(("prvn", "druh", "třet"))
    return token.word.means(Meaning.THAN) and not first_place


def _is_denied(clause: Sequence[Token], at: int) -> bool:
    before = [token.lower for token in reversed(clause[max(0, at - 3) : at]) if token.lower not in ARTICLES]
    return bool(before) and before[0] in ("ne", "nikoli", "nikoliv")


def _nearest(clause: Sequence[Token], predicate: _Predicate, targets: list[Token]) -> list[Token] | None:
    """The first shop after the word, else the last before it, with those that "a" or "i" joins to it."""
    after = [token for token in targets if token.start > predicate.token.start]
    ordered = after or targets[::-1]
    group = ordered[:1]
    for token in ordered[1:]:
        low, high = sorted((token.start, group[-1].start))
        between = [one.lower for one in clause if low < one.start < high]
        if not set(between) & JOINS or not set(between) <= JOINS | ARTICLES:
            break
        group.append(token)
    return group
