"""What the KL probe will yield, by the lists that it yields its measurements from."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from q36eval.gate import NON_FINITE
from q36eval.kl.breakdown import token_figures
from q36eval.kl.measurements import ALL, DOCUMENT_TAIL, MACRO_AVERAGE, Metric, document_figures
from q36eval.records import DeclaredFigure, Direction, ProbeName


@dataclass(frozen=True)
class Held:
    """What a slice or a group of tokens holds; None where only the data tell."""

    tokens: int | None = None
    documents: int | None = None
    clusters: int | None = None


def declared_figures(
    slices: Mapping[str, Held], groups: Mapping[str, Held], everything: Held
) -> Iterator[DeclaredFigure]:
    """Every figure over documents of these slices, whose tokens are of these groups (`kl.breakdown.groups`).

    A group by the reference's entropy holds tokens only where the reference was as sure as that.
    """
    yield DeclaredFigure(
        ProbeName.KL, NON_FINITE, ALL, "census", Direction.LOWER_IS_BETTER, "tokens", items=everything.tokens
    )
    held = {ALL: everything, **slices, **groups}
    for metric, name in (*document_figures(slices), *token_figures(slices, groups)):
        yield _declared(metric, name, held[name])


def _declared(metric: Metric, name: str, held: Held) -> DeclaredFigure:
    bounded = metric.bounds is not None and all(map(math.isfinite, metric.bounds))
    return DeclaredFigure(
        ProbeName.KL,
        metric.name,
        name,
        metric.estimator,
        metric.direction,
        metric.unit,
        bounded,
        items=held.documents if metric is DOCUMENT_TAIL else held.tokens,
        clusters=None if metric is MACRO_AVERAGE else held.clusters,
    )
