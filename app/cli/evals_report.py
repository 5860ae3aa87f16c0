"""The output of `q36eval evals`."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.tables import flip_parts, print_run, rows_table
from q36eval.app.figures.evals import (
    answer_words,
    flip_json,
    flip_words,
    flips_of,
    group_rows,
    largest,
    length_rows,
    perplexity_rows,
    seconds_by_group,
)
from q36eval.inert_text import plain
from q36eval.records import ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, evals_section

if TYPE_CHECKING:
    from rich.console import RenderableType

    from q36eval.history import History, RunRecord

FLIPS_SHOWN = 5
"""For each direction; `--json` lists all."""


def print_summary(run: "RunRecord", history: "History") -> None:
    """Groups, RULER by length, perplexity, the largest flips, and missing measurements."""
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    flips = flips_of(items)
    told = flip_parts(flips, largest(flips, FLIPS_SHOWN), flip_words)
    print_run(run, history, [*_parts(figures, seconds_by_group(items, figures)), *told])


def evals_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """The `--json` content in addition to the measurements: figures by group, effective lengths, and all flips."""
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    section = json.loads(evals_section(figures, {}).model_dump_json())
    return {
        "evals": section | {"seconds": seconds_by_group(items, figures)},
        "flips": [flip_json(flip) for flip in flips_of(items)],
    }


def _parts(figures: EvalsFigures, seconds: dict[str, float]) -> Iterator["RenderableType"]:
    if not figures.measured:
        yield "No item was scored."
    groups = group_rows(figures, seconds)
    if groups:
        yield rows_table(groups, right=(1, 2, 4, 5, 6, 7, 8, 9))
    yield from map(plain, answer_words(figures))
    for group, length in effective_lengths(figures, {}).items():
        yield ""
        lengths = length_rows(figures, group)
        if lengths:
            yield rows_table(lengths, right=(0, 1, 2, 4, 5))
        yield plain(effective_words(length))
    perplexities = perplexity_rows(figures)
    if perplexities:
        yield ""
        yield rows_table(perplexities, right=(3, 4))
