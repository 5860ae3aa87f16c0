"""Facts: tables of ours, computed arithmetic, and the generators that put them as statements or multiple choice.

Each `*.yaml` beside this file lists subjects; a subject has relations; a relation has a question, statements and rows
(what is asked: its answer), the best known first.
"""

from q36eval.evals.generators.facts._computed import COMPUTED
from q36eval.evals.generators.facts._questions import (
    EXPOSURE_EXPONENT,
    LETTERS,
    Question,
    draw_question,
    draw_shots,
    fact_digest,
    facts_binding,
    facts_mmlu,
    facts_statement,
    render_mmlu,
)
from q36eval.evals.generators.facts._tables import Relation, load_subjects

__all__ = [
    "COMPUTED",
    "EXPOSURE_EXPONENT",
    "LETTERS",
    "Question",
    "Relation",
    "draw_question",
    "draw_shots",
    "fact_digest",
    "facts_binding",
    "facts_mmlu",
    "facts_statement",
    "load_subjects",
    "render_mmlu",
]
