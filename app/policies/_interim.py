"""Interim declarations of the KL probe."""

from collections.abc import Sequence

from kl.breakdown import token_figures
from kl.measurements import document_figures
from kl.spans import KINDS
from q36eval.declared import DeclaredFigure
from q36eval.gate import NON_FINITE
from q36eval.records import Direction, ProbeName


def of_texts(slices: Sequence[str]) -> list[DeclaredFigure]:
    groups = [f"kind={kind}" for kind in KINDS]
    found = [DeclaredFigure(ProbeName.KL, NON_FINITE, "all", "census", Direction.LOWER_IS_BETTER, "tokens")]
    for m, name in (*document_figures(slices), *token_figures(slices, groups)):
        found.append(DeclaredFigure(ProbeName.KL, m.name, name, m.estimator, m.direction, m.unit, m.bounds is not None))
    return found
