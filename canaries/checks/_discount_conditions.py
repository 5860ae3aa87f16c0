"""Discounts with a threshold: what an answer says of whether they apply, and whether that is so."""

from collections.abc import Iterator, Sequence

from q36eval.canaries.checks._claims import Clause
from q36eval.canaries.checks._lexicon import Meaning, word_set
from q36eval.canaries.checks._offers import Offer
from q36eval.canaries.checks._tokens import Kind, Token


def condition_said(clause: Clause, offer: Offer) -> tuple[Token, bool] | None:
    """The word that says that a discount of a shop applies or that its threshold is exceeded, and whether that is
    said; None where the shop has no threshold or nothing is said of it."""
    if all(step.discount.only_above is None for step in offer.steps):
        return None
    for part in _parts(_said(clause)):
        said = _says_in_part(part)
        if said is not None:
            return said
    return None


def applies(offer: Offer) -> bool:
    """Whether the discount that has a threshold applies."""
    return next(step.applies for step in offer.steps if step.discount.only_above is not None)


def leaves_open(clause: Clause) -> Token | None:
    """ "platí-li": the word that leaves open whether a discount applies."""
    return next((clause.tokens[0] for token in clause.tokens if token.lower == "li"), None)


_YES_OR_NO = word_set("ano ne splněno nesplněno")


def _said(clause: Clause) -> Sequence[Token]:
    """A heading of a table says nothing, but for a cell that answers it with yes or no."""
    cell = clause.tokens[clause.label :]
    answers = bool(cell) and cell[0].lower in _YES_OR_NO
    return clause.tokens if answers else cell


_JOINS_PARTS = word_set("a ale takže proto protože jelikož neboť")


def _parts(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Between "a", "ale", "protože" and parentheses: what one part denies, the other does not."""
    part: list[Token] = []
    for token in tokens:
        if token.lower in _JOINS_PARTS or token.kind in (Kind.OPEN, Kind.CLOSE, Kind.BREAK):
            yield part
            part = []
        part.append(token)
    yield part


def _denies(token: Token) -> bool:
    return token.word.means(Meaning.NOT) or token.word.negated or token.lower.startswith(("chyb", "scház"))


def _says_in_part(tokens: Sequence[Token]) -> tuple[Token, bool] | None:
    words = {token.lower for token in tokens}
    if words & {"pokud", "kdyby", "jestliže", "zda", "li", "by", "přesto", "abyste", "aby"}:
        return None
    denied = sum(_denies(token) for token in tokens) % 2 == 1
    only = any(token.word.means(Meaning.ONLY) for token in tokens)
    for at, token in enumerate(tokens):
        word = token.word
        if word.means(Meaning.MET):
            if only and not denied:
                return None
            number_after_nad = any(one.lower == "nad" for one in tokens[at:])
            if number_after_nad and not denied and token.lower.startswith(("uplat", "vztah", "použ")):
                return None
            return token, not denied
        if token.lower in ("platí", "neplatí", "platila", "platit", "platná", "neplatná"):
            subject = any(one.word.means(Meaning.DISCOUNT, Meaning.LIMIT) for one in tokens)
            reflexive = any(one.lower == "se" for one in tokens)
            if not subject or reflexive or (only and not denied) or any(one.lower == "nad" for one in tokens[at:]):
                return None
            return token, not denied
        follows = tokens[0].lower in ("takže", "proto") and token.lower in ("s", "se")
        if follows and any(one.word.means(Meaning.DISCOUNT) for one in tokens[at + 1 : at + 2]):
            return token, True
        if token.lower in ("bez", "beze") and any(one.word.means(Meaning.DISCOUNT) for one in tokens[at : at + 3]):
            return token, False
    return _copula(tokens, denied, only)


def _copula(tokens: Sequence[Token], denied: bool, only: bool) -> tuple[Token, bool] | None:
    """ "750 Kč je nad 500 Kč", "jsme pod hranicí"."""
    is_said = any(token.lower in ("je", "jsme", "jsou", "není", "nejsme") for token in tokens)
    if not is_said or only:
        return None
    for token in tokens:
        if token.lower in ("nad", "pod"):
            return token, (token.lower == "nad") != denied
    return None
