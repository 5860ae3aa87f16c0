"""What `q36eval canaries --repeat N` prints after the first run's report: whether all runs agree."""

from collections.abc import Sequence
from typing import Any

from q36eval.app.canary_repeating import Agreement, Differing, Repeat
from q36eval.app.cli.tables import plain_table
from q36eval.reports._text import number, plain


def print_agreement(found: Agreement, repeats: Sequence[Repeat]) -> None:
    """The verdict on repeatability, pass counts by run where they differ, and every question that did."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(f"\n{agreement_words(found)}", style="bold"))
    for name, repeat in zip(_names(repeats), repeats, strict=True):
        console.print(Text(plain(f"  {name}: run {repeat.run_id}")))
    moved = [(group, counts) for group, counts in found.passed.items() if len(set(counts)) > 1]
    if moved:
        columns = ("right answers of", *_names(repeats))
        console.print(plain_table(columns, [(group, *map(str, counts)) for group, counts in moved], right=()))
    for one in found.differing:
        console.print(Text(f"  {plain(_differing_words(one, repeats))}"))


def agreement_words(found: Agreement) -> str:
    """One sentence: what agrees over all runs."""
    must = "agree" if found.must_pass_agree else "DIFFER"
    rates = "agree" if found.rates_agree else "DIFFER"
    count = len(found.differing)
    listed = "no question is unstable" if not count else f"{count} of {found.questions} questions are unstable"
    texts = f"; {found.texts_differ} answers differ in their text" if found.texts_differ else ""
    return f"{found.runs} runs: must-pass outcomes {must}, pass rates {rates}, {listed}{texts}."


def agreement_json(found: Agreement, repeats: Sequence[Repeat]) -> dict[str, Any]:
    """The same as JSON values; scores and standings are in the order of the runs."""
    return {
        "must_pass_agree": found.must_pass_agree,
        "rates_agree": found.rates_agree,
        "questions": found.questions,
        "texts_differ": found.texts_differ,
        "batch_sizes": [repeat.rows for repeat in repeats],
        "runs": [repeat.run_id for repeat in repeats],
        "right_answers": {group: list(counts) for group, counts in found.passed.items()},
        "unstable": [
            {"name": one.name, "must_pass": one.must_pass, "scores": one.scores, "standings": one.standings}
            for one in found.differing
        ],
    }


def _names(repeats: Sequence[Repeat]) -> list[str]:
    return [
        f"{place}, the engine's batches" if repeat.rows is None else f"{place}, batches of {repeat.rows}"
        for place, repeat in enumerate(repeats, 1)
    ]


def _differing_words(one: Differing, repeats: Sequence[Repeat]) -> str:
    came_out = one.standings if one.must_pass else tuple(number(score) for score in one.scores)
    pairs = zip(_names(repeats), came_out, strict=True)
    return f"{one.name}: " + "; ".join(f"{name}: {outcome}" for name, outcome in pairs)
