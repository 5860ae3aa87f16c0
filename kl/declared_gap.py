"""What the KL probe will yield, by the lists that it yields its measurements from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from q36eval.gate import NON_FINITE
from q36eval.kl.breakdown import token_figures
from q36eval.kl.measurements import DOCUMENT_TAIL, document_figures
from q36eval.metrics import ALL, METRICS, DeclaredFigure
from q36eval.records import ProbeName

DRAFT_ACCEPTANCE = "draft_acceptance"
DRAFT_GUESSES = ("guess=1", "guess=2", "guess=3")
"""Tokens ahead that a draft head guesses; the published cards serve with 2 to 4. Only checkpoints tell whether there is
one, so these are not declared."""


@dataclass(frozen=True)
class Held:
    """What a slice or a group of tokens holds; None where only the data tell."""

    tokens: int | None = None
    documents: int | None = None
    clusters: int | None = None


def declared_figures(
    slices: Mapping[str, Held], groups: Mapping[str, Held], everything: Held
) -> Iterator[DeclaredFigure]:
    """Every figure over documents of these slices, whose tokens are of these groups (`kl.breakdown.groups`)."""
    yield METRICS[ProbeName.KL, NON_FINITE].declared(items=everything.tokens)
    held = {ALL: everything, **slices, **groups}
    for figure, name in (*document_figures(slices), *token_figures(slices, groups)):
        holds = held[name]
        items = holds.documents if figure is DOCUMENT_TAIL else holds.tokens
        yield figure.metric.declared(name, items=items, clusters=holds.clusters)
