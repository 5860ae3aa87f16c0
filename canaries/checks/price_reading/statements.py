"""What an answer says of the shops: who is cheaper or dearer, that they cost the same, whom it recommends.

A sentence is read clause by clause: a word that says something (a comparative, "save", "buy", "win" …, from the
lexicon), the shops that it may say it of, those that another is only compared with, and negations. Concessions and what
does not happen say nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from q36eval.canaries.checks.price_reading.claims import shops_in
from q36eval.canaries.checks.price_reading.clauses import (
    Predicate,
    clauses_of,
    concedes_outright,
    deny,
    discount_named,
    is_aside,
    is_number_next,
    joined_by_sign,
    nearest,
    negations,
    predicate_of,
    roles_of_shops,
    says_nobody,
    sentences_of,
    without_tail,
)
from q36eval.canaries.checks.price_reading.comparisons import (
    Says,
    Sentence,
    Statement,
    equality_word,
    listed_ranking,
    ranking_of,
    tie,
)
from q36eval.canaries.checks.price_reading.lexicon import ARTICLES, Meaning, word_set
from q36eval.canaries.checks.price_reading.tokens import Kind, Token

_ADVERBS = word_set(
    """jednoznačně jasně určitě rozhodně konkrétně tedy tak proto takže nakonec čili totiž právě opět zde cena kč
    obchod nákup samozřejmě celkově těsně a i ano"""
)
_THE_OTHERS = word_set("ostatní ostatních zbylé zbylí zbývající jinde")
_MANY_NEGATIONS = 3
_MOVED = 5


def read_statements(lines: Sequence[Sequence[Token]], skip: frozenset[int] = frozenset()) -> list[Statement]:
    """Every statement about the shops, in the order of the text. `skip` are lines not to read, such as tables'.

    "The second one" is nobody where the answer names the shops in another order than the prompt did.
    """
    statements = _all_statements(lines, skip)
    order = list(dict.fromkeys(token.shop for line in lines for token in line if token.shop and not token.ordinal))
    if order == sorted(order):
        return statements
    return [replace(one, says=Says.UNCLEAR) if one.token.ordinal else one for one in statements]


def _all_statements(lines: Sequence[Sequence[Token]], skip: frozenset[int]) -> list[Statement]:
    statements: list[Statement] = []
    pending: Predicate | None = None
    labelled = False
    before: list[Token] = []
    discounts = False
    ranked = frozenset[int]()
    for number, line in enumerate(lines):
        if number in skip or not line:
            continue
        listed = listed_ranking(lines, number)
        if listed is not None:
            statements.append(listed[0])
            ranked = listed[1]
        for sentence in sentences_of(line):
            state = Sentence(number, _first_word(sentence), pending=pending, labelled=labelled, last=before)
            state.of_discount = discounts and sentence[0].lower in _IT
            question = sentence[-1].kind is Kind.STOP and "?" in sentence[-1].text
            read = list(_read_sentence(sentence, state))
            pending, labelled = None, False
            if question:
                pending, labelled = _left_to_answer(sentence)
                read = [_unclear(sentence, state)] if len(shops_in(sentence)) == 1 else []
            statements += [statement for statement in read if not (statement.bare and number in ranked)]
            before, discounts = state.last, state.of_discount
        labelled = labelled or _is_label(line)
    return statements


_IT = word_set("ta ten tu ty tato její jeho")


def _first_word(sentence: Sequence[Token]) -> int:
    """Where the first word stands, after a bullet or a dash."""
    words = (token for token in sentence if token.kind in (Kind.WORD, Kind.SHOP, Kind.NUMBER))
    return next(words, sentence[0]).start


def _is_label(line: Sequence[Token]) -> bool:
    words = [token for token in line if token.kind in (Kind.WORD, Kind.NUMBER, Kind.SHOP)]
    if any(token.is_money and token.unit for token in words):
        return False  # "výsledek: 5 580 Kč"
    return 0 < len(words) <= 3 and any(token.word.means(Meaning.LABEL) for token in words) and not shops_in(line)


def _unclear(sentence: Sequence[Token], state: Sentence) -> Statement:
    token = next((token for token in sentence if token.shop), sentence[0])
    return Statement(Says.UNCLEAR, tuple(sorted(shops_in(sentence))), frozenset(), token, state.line, state.start)


def _left_to_answer(sentence: Sequence[Token]) -> tuple[Predicate | None, bool]:
    """What a question leaves for the next sentence to answer."""
    predicate = predicate_of(sentence)
    return predicate, predicate is None and any(token.word.means(Meaning.LABEL) for token in sentence)


# ---- one sentence


_AS_IT_IS = word_set("takhle takto skutečnosti reálně")


def _real(sentence: list[Token]) -> list[Token]:
    """Of "if …, B would be cheaper, as it is A is" what holds; of "even if …, A would be cheaper" what follows."""
    unreal = [at for at, token in enumerate(sentence) if token.word.means(Meaning.UNREAL)]
    if not unreal:
        return sentence
    breaks = [at for at, token in enumerate(sentence) if token.kind is Kind.BREAK and at > unreal[-1]]
    for at in breaks:
        if any(token.lower in _AS_IT_IS for token in sentence[at + 1 : at + 4]):
            return sentence[at + 1 :]
    even = unreal[0] > 0 and sentence[unreal[0] - 1].lower in ("i", "ani")
    return sentence[breaks[0] + 1 :] if even and len(unreal) == 1 and breaks else sentence


_TELLS_WHICH = word_set("v ve u tedy tj čili totiž")


def _without_explained(sentence: list[Token]) -> list[Token]:
    """With the shop itself in place of "the second one" where it follows: "v tom druhém – v A"."""
    kept: list[Token] = []
    skipped = 0
    for at, token in enumerate(sentence):
        if skipped:
            skipped -= 1
            continue
        kept.append(token)
        following = sentence[at + 1 : at + 5]
        shop = next((place for place, one in enumerate(following) if one.shop and not one.ordinal), 0)
        between = following[:shop]
        if (
            token.ordinal
            and shop
            and between[0].text in ("-", ",")
            and all(one.lower in _TELLS_WHICH for one in between[1:])
        ):
            kept[-1] = following[shop]
            skipped = shop + 1
    return kept


def _read_sentence(sentence: list[Token], state: Sentence) -> Iterator[Statement]:
    sentence = _real(_without_explained(sentence))
    words = [token.word for token in sentence]
    if any(word.means(Meaning.UNREAL) for word in words):
        state.last = [token for token in sentence if token.shop][-1:]
        return
    state.hedged = any(
        token.word.means(Meaning.HEDGE) and not (token.word.means(Meaning.ABOUT) and is_number_next(sentence, at))
        for at, token in enumerate(sentence)
    ) or ((sentence[-1].kind is Kind.STOP and sentence[-1].text[0] in "…") or sentence[-1].text == "...")
    if sum(word.means(Meaning.NOT) or word.negated or word.means(Meaning.NOWHERE) for word in words) >= _MANY_NEGATIONS:
        if predicate_of(sentence) is not None and shops_in(sentence):
            yield _unclear(sentence, state)
        return
    state.seeks = any(
        one.lower in ("tam", "ten", "tu") and two.text == "," and three.word.means(Meaning.RELATIVE)
        for one, two, three in _triples(sentence)
    )
    ranking, rest = ranking_of(sentence, state)
    if ranking is not None:
        yield ranking
    if any(
        one.shop and two.kind is Kind.ARROW and three.shop and one.shop != three.shop
        for one, two, three in _triples(rest)
    ):
        yield _unclear(rest, state)  # "Závěr: A → B"
        return
    previous = state.last
    state.last = []
    advice = stated = any_predicate = False
    for clause in clauses_of(rest):
        if not clause:
            continue
        condition = any(token.word.means(Meaning.IF) and token.lower != "když" for token in clause)
        if condition and not state.named and not _about_price(clause):
            advice = True
        for statement in () if advice else _read_clause(clause, state, previous):
            stated = True
            yield statement
        any_predicate = any_predicate or (not advice and not is_aside(clause) and predicate_of(clause) is not None)
        if advice and not condition:
            advice = False
    if any_predicate and not stated and ranking is None and shops_in(rest):
        yield _unclear(rest, state)


def _triples(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token, Token]]:
    return zip(tokens, tokens[1:], tokens[2:], strict=False)


def _about_price(clause: Sequence[Token]) -> bool:
    return any(
        token.word.means(Meaning.SAVE, Meaning.COST, Meaning.GOOD, Meaning.LESS, Meaning.PAY, Meaning.FINAL)
        for token in clause
    )


def _read_clause(clause: list[Token], state: Sentence, previous: list[Token]) -> Iterator[Statement]:
    clause = without_tail(clause)
    targets, than, denied = roles_of_shops(clause)
    aside = (is_aside(clause) and not concedes_outright(clause)) or any(token.lower in _SO_THAT for token in clause[:3])
    predicate = None if aside else predicate_of(clause)
    of_discount = (
        predicate is not None and state.of_discount and predicate.token.lower in _SIZES and not _about_cost(clause)
    )
    if of_discount:
        predicate = None  # "rozhoduje sleva, a ta je vyšší v B"
    same = None if aside or (predicate is not None and targets) else equality_word(clause, predicate)
    if same is not None:
        yield from tie(clause, same, state)
        state.last = targets or state.last
    elif predicate is not None and predicate.beats:
        yield from _beaten(clause, predicate, state)
        state.last = targets or state.last
    elif predicate is not None:
        if state.denied:
            predicate.denied = not predicate.denied
        yield from _of_target(clause, predicate, targets, than, denied, state, previous)
    elif not aside:
        yield from _discounts_compared(clause, targets, than, state, of_discount)
        yield from _without_word(clause, targets, denied, state)
    state.mentioned += shops_in(clause)
    if targets:
        state.last = targets
        state.named += [token.shop for token in targets]
    words = {token.lower for token in clause}
    state.denied = bool(words & {"nelze", "neplatí"}) or {"není", "pravda"} <= words
    topics = [token for token in clause if token.word.means(Meaning.COST, Meaning.DISCOUNT)]
    if topics:
        state.of_discount = topics[-1].word.means(Meaning.DISCOUNT)


_REFERS = word_set("jeho její tam má dává nabízí poskytuje")
_SO_THAT = word_set("aby abyste abychom abych abys")
_SIZES = word_set("vyšší nižší větší menší nejvyšší nejnižší největší nejmenší")


def _about_cost(clause: Sequence[Token]) -> bool:
    return any(token.word.means(Meaning.COST, Meaning.PAY, Meaning.FINAL) for token in clause)


# ---- of whom


def _of_target(
    clause: Sequence[Token],
    predicate: Predicate,
    targets: list[Token],
    than: list[Token],
    denied: list[Token],
    state: Sentence,
    previous: list[Token],
) -> Iterator[Statement]:
    if says_nobody(clause) and not targets and than:
        yield _statement(predicate, than, [], state)
        return
    for token in denied:
        yield _statement(deny(predicate), [token], than, state)
    chosen = nearest(clause, predicate, targets)
    if not targets and not than and any(token.lower in _THE_OTHERS for token in clause):
        return
    if joined_by_sign(clause) and len({token.shop for token in targets}) > 1:
        yield _unclear(clause, state)
        return
    if not chosen and not denied:
        referred = _referred(clause, state, previous)
        if referred is None:
            yield replace(_unclear(clause, state), token=predicate.token)
            return
        chosen = referred
        subject = discount_named(clause, predicate)
        if not chosen and subject:
            yield replace(_statement(predicate, [predicate.token], than, state), shops=(), subject=subject)
            return
    if chosen:
        saves = predicate.token.word.means(Meaning.SAVE)
        amounts = frozenset(token.value for token in clause if token.is_money)
        yield replace(_statement(predicate, chosen, than, state), amounts=amounts, saves=saves)
        state.labelled = False
        state.pending = None
        if predicate.denied:
            state.pending = Predicate(predicate.sign, predicate.at, predicate.token, predicate.superlative)
    elif denied:
        state.pending = predicate
    else:
        state.pending = predicate


def _referred(clause: Sequence[Token], state: Sentence, previous: list[Token]) -> list[Token] | None:
    """The shop that a clause speaks of without naming it; none where there is none, None where it could be several."""
    relative = any(token.word.means(Meaning.RELATIVE) for token in clause[:4])
    points = any(token.word.means(Meaning.POINTS) for token in clause)
    if relative and state.last:
        return state.last[-1:]
    named = set(state.named)
    if any(token.lower in ("tam", "ten", "tu") for token in clause[-3:]) and state.seeks:
        return []
    if points and len(set(state.mentioned) | shops_in(clause)) > 1:
        return None
    if len(named) == 1:
        return state.last[-1:]
    if len(named) > 1:
        return None if points or _says_it_is(clause) else []
    if points:
        shops = {token.shop for token in previous}
        return previous[-1:] if len(shops) == 1 else None
    return []


def _says_it_is(clause: Sequence[Token]) -> bool:
    """Whether a clause is a statement of its own ("je výhodnější"), which needs somebody to speak of."""
    return any(token.lower in ("je", "vyjde", "vychází", "byl") for token in clause[:4])


def _statement(predicate: Predicate, shops: list[Token], than: list[Token], state: Sentence) -> Statement:
    cheaper = predicate.sign > 0
    if predicate.denied:
        says = Says.NOT_CHEAPER if cheaper else Says.NOT_DEARER
    else:
        says = Says.CHEAPER if cheaper else Says.DEARER
    letters = tuple(dict.fromkeys(token.shop for token in shops))
    others = frozenset(token.shop for token in than) - set(letters)
    return Statement(
        says, letters, others, shops[0], state.line, state.start, superlative=predicate.superlative, hedged=state.hedged
    )


def _beaten(clause: Sequence[Token], predicate: Predicate, state: Sentence) -> Iterator[Statement]:
    """ "A porazí C": who stands before the verb beats who stands after it; in any other order nobody can tell."""
    before = [token for token in clause if token.shop and token.start < predicate.token.start]
    after = [token for token in clause if token.shop and token.start > predicate.token.start]
    if any(token.lower in ("cenou", "částkou") for token in clause):
        yield _unclear(clause, state)  # a price may beat by being low, or be higher
        return
    if len({token.shop for token in before}) == 1 and len({token.shop for token in before + after}) > 1 and after:
        yield _statement(predicate, before[:1], after, state)
    elif len({token.shop for token in [*before, *after]}) == 1 and before:
        yield _statement(predicate, before[:1], [], state)
    elif before or after:
        yield _unclear(clause, state)


def _discounts_compared(
    clause: Sequence[Token], targets: list[Token], than: list[Token], state: Sentence, implied: bool
) -> Iterator[Statement]:
    """ "Vyšší slevu dává obchod A": true or false, but it decides nothing. `implied`: "ta je vyšší v A"."""
    sizes = [token for token in clause if token.word.means(Meaning.MORE, Meaning.LESS)]
    discounts = implied or any(token.word.means(Meaning.DISCOUNT) for token in clause)
    refers = any(token.lower in _REFERS for token in clause)
    if not targets and refers and len(set(state.named)) == 1:
        targets = state.last[-1:]
    if not discounts or len(sizes) != 1 or len({token.shop for token in targets}) != 1 or negations(clause, -1):
        return
    says = Says.MORE_DISCOUNT if sizes[0].word.means(Meaning.MORE) else Says.LESS_DISCOUNT
    others = frozenset(token.shop for token in than)
    yield Statement(says, (targets[0].shop,), others, sizes[0], state.line, state.start, hedged=state.hedged)


def _without_word(
    clause: Sequence[Token], targets: list[Token], denied: list[Token], state: Sentence
) -> Iterator[Statement]:
    """A clause that names a shop and says nothing: it ends what an earlier one began, or stands alone."""
    letters = {token.shop for token in targets}
    if clause[0].kind is Kind.OPEN and state.pending is None:
        return  # "2 850 Kč (A)"
    if joined_by_sign(clause) and (state.labelled or state.pending is not None):
        yield _unclear(clause, state)
        return
    if len(letters) > 1 and (joined_by_sign(clause) or any(token.word.means(Meaning.NOT) for token in clause)):
        if not any(token.is_money for token in clause) or not joined_by_sign(clause):
            yield replace(_unclear(clause, state), bare=True)
        return
    pending = state.pending
    if pending is not None and denied and not targets:
        yield _statement(deny(pending), denied, [], state)
        return
    others = [
        token
        for token in clause
        if token.kind is Kind.WORD and token.lower not in ARTICLES and token.lower not in _ADVERBS
    ]
    others = [token for token in others if not token.word.means(Meaning.LABEL, Meaning.BUT, Meaning.FINAL)]
    sums = any(token.kind is Kind.EQUALS for token in clause)
    colon = bool(clause) and clause[-1].text == ":"
    answers = pending is not None and (pending.token.start >= state.start or not colon)
    if len(letters) == 1 and pending is not None and answers and not sums and len(others) <= _MOVED:
        yield _statement(pending, targets[:1], [], state)
        if not pending.denied:
            state.pending = None
        return
    money = any(token.is_money for token in clause)
    if len(letters) == 1 and not colon and not sums and len(others) <= 1 and (state.labelled or not money):
        predicate = Predicate(1, 0, targets[0])
        yield replace(_statement(predicate, targets[:1], [], state), bare=not state.labelled)
    elif len(letters) == 1 and not money and not sums and len(others) > 1 and not _known_neutral(clause):
        yield replace(_unclear(clause, state), bare=True)
    if targets:
        state.labelled = False
    if any(token.word.means(Meaning.LABEL) for token in clause) or (clause and clause[-1].kind is Kind.ARROW):
        state.labelled = True


def _known_neutral(clause: Sequence[Token]) -> bool:
    return any(
        token.word.means(Meaning.DISCOUNT, Meaning.MET, Meaning.LIMIT, Meaning.PAY, Meaning.COST, Meaning.AFTER)
        for token in clause
    )
