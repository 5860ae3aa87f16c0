"""What `q36eval evals` prints."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.tables import ANSWER_CHARACTERS, PROMPT_CHARACTERS, print_run, rows_table, short
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
from q36eval.records import ItemOutcome, ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, evals_section

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from q36eval.history import History, RunRecord

FLIPS_SHOWN = 5
"""Of each direction; `--json` lists all."""


def print_summary(run: "RunRecord", history: "History") -> None:
    """Groups, RULER by length, perplexity, the largest flips, and what was not measured."""
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    print_run(run, history, [*_parts(figures, seconds_by_group(items, figures)), *_flip_parts(flips_of(items))])


def evals_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """What `--json` holds in addition to the measurements: figures by group, effective lengths, and all flips."""
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    section = json.loads(evals_section(figures, {}).model_dump_json())
    return {
        "evals": section | {"seconds": seconds_by_group(items, figures)},
        "flips": [flip_json(flip) for flip in flips_of(items)],
    }


def _parts(figures: EvalsFigures, seconds: dict[str, float]) -> Iterator["RenderableType"]:
    from rich.text import Text

    if not figures.measured:
        yield Text("No item was scored.")
    groups = group_rows(figures, seconds)
    if groups:
        yield rows_table(groups, right=(1, 2, 4, 5, 6, 7, 8, 9, 10))
    for line in answer_words(figures):
        yield Text(plain(line))
    for group, length in effective_lengths(figures, {}).items():
        yield Text("")
        lengths = length_rows(figures, group)
        if lengths:
            yield rows_table(lengths, right=(0, 1, 2, 4, 5))
        yield Text(plain(effective_words(length)))
    perplexities = perplexity_rows(figures)
    if perplexities:
        yield Text("")
        yield rows_table(perplexities, right=(3, 4))


def _flip_parts(flips: Sequence[ItemOutcome]) -> Iterator["RenderableType"]:
    from rich.text import Text

    shown = largest(flips, FLIPS_SHOWN)
    for direction, title in (("regression", "lost"), ("improvement", "gained")):
        whole = [flip for flip in flips if flip.flip == direction]
        chosen = [flip for flip in shown if flip.flip == direction]
        if chosen:
            yield Text(f"\n{len(whole)} items {title}" + (f", the {len(chosen)} largest:" if chosen != whole else ":"))
        for flip in chosen:
            yield from _flip_lines(flip)


def _flip_lines(flip: ItemOutcome) -> Iterator["Text"]:
    from rich.text import Text

    yield Text(plain(flip_words(flip)), style="bold")
    yield Text(f"  prompt     {short(flip.prompt or '', PROMPT_CHARACTERS)}")
    if flip.expected is not None:
        yield Text(f"  expected   {short(flip.expected, ANSWER_CHARACTERS)}")
    yield Text(f"  reference  {short(flip.reference.text or '', ANSWER_CHARACTERS)}")
    yield Text(f"  branch     {short(flip.branch.text or '', ANSWER_CHARACTERS)}")
