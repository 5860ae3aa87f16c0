"""What a statement about the shops says, and what is known of the sentence that it stands in."""

from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from q36eval.canaries.checks._said import Said
from q36eval.canaries.checks._tokens import Token


class Says(StrEnum):
    """What a verdict says."""

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
class Verdict:
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
    pending: Said | None = None
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
