"""What `q36eval evals` prints."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.tables import plain_table
from q36eval.app.figures.answers import shortened
from q36eval.app.figures.evals import (
    GROUP_COLUMNS,
    PART_COLUMNS,
    PERPLEXITY_COLUMNS,
    Flip,
    answer_words,
    flip_json,
    flip_words,
    flips_of,
    group_rows,
    largest,
    length_rows,
    macro_words,
    perplexity_rows,
    seconds_by_group,
)
from q36eval.measured_on import recorded_unverified
from q36eval.records import ProbeName
from q36eval.reports.evals_figures import DEFAULT_RECOVERY, EvalsFigures, effective_words, figures_json
from q36eval.reports.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from q36eval.history import History, RunRecord

FLIPS_SHOWN = 5
"""Of each direction; `--json` lists all."""

PROMPT_CHARACTERS = 240
ANSWER_CHARACTERS = 160


def print_summary(run: "RunRecord", history: "History") -> None:
    """Groups, RULER by length, perplexity, the largest flips, and what was not measured."""
    from rich.console import Console
    from rich.text import Text

    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    console = Console()
    console.print(Text(plain(f"{run.family}/{run.branch}, run {run.id}"), style="bold"))
    if not figures.measured:
        console.print(Text("No item was scored."))
    seconds = seconds_by_group(items, figures)
    for part in _parts(figures, seconds):
        console.print(part)
    for part in _flip_parts(flips_of(items)):
        console.print(part)
    unverified = recorded_unverified(run.provenance)
    if unverified is not None:
        console.print(Text(plain(unverified)))
    for failure in history.failures(run.id):
        console.print(Text(plain(f"not measured: {failure.probe}: {failure.reason}")))


def evals_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """What `--json` holds in addition to the measurements: figures by group, effective lengths, and all flips."""
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    return {
        "evals": figures_json(figures, DEFAULT_RECOVERY) | {"seconds": seconds_by_group(items, figures)},
        "flips": [flip_json(flip) for flip in flips_of(items)],
    }


def _parts(figures: EvalsFigures, seconds: dict[str, float]) -> Iterator["RenderableType"]:
    from rich.text import Text

    groups = group_rows(figures, seconds)
    if groups:
        yield plain_table(GROUP_COLUMNS, groups, right=(1, 2, 4, 5, 6, 7, 9, 10, 11))
    for line in answer_words(figures):
        yield Text(plain(line))
    for line in macro_words(figures):
        yield Text(plain(line))
    for group in figures.groups_with_lengths():
        yield Text("")
        yield plain_table((f"{group} by tokens", *PART_COLUMNS), length_rows(figures, group), right=(0, 1, 2, 4, 5))
        yield Text(plain(effective_words(figures.effective_length(group, DEFAULT_RECOVERY))))
    perplexities = perplexity_rows(figures)
    if perplexities:
        yield Text("")
        yield plain_table(PERPLEXITY_COLUMNS, perplexities, right=(4, 5))


def _flip_parts(flips: Sequence[Flip]) -> Iterator["RenderableType"]:
    from rich.text import Text

    shown = largest(flips, FLIPS_SHOWN)
    for direction, title in (("regression", "lost"), ("improvement", "gained")):
        whole = [flip for flip in flips if flip.direction == direction]
        chosen = [flip for flip in shown if flip.direction == direction]
        if chosen:
            yield Text(f"\n{len(whole)} items {title}" + (f", the {len(chosen)} largest:" if chosen != whole else ":"))
        for flip in chosen:
            yield from _flip_lines(flip)


def _flip_lines(flip: Flip) -> Iterator["Text"]:
    from rich.text import Text

    yield Text(plain(flip_words(flip)), style="bold")
    yield Text(f"  prompt     {_short(flip.prompt, PROMPT_CHARACTERS)}")
    if flip.expected is not None:
        yield Text(f"  expected   {_short(flip.expected, ANSWER_CHARACTERS)}")
    yield Text(f"  reference  {_short(flip.reference.text or '', ANSWER_CHARACTERS)}")
    yield Text(f"  branch     {_short(flip.branch.text or '', ANSWER_CHARACTERS)}")


def _short(text: str, most: int) -> str:
    """One harmless line with the text's beginning and end."""
    return plain(shortened(text, most), limit=2 * most)
