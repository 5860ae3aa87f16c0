"""`q36eval history compare`: two runs compared."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.records import branch_title

if TYPE_CHECKING:
    from q36eval.gate import CriterionResult
    from q36eval.history import RunRecord
    from q36eval.history.run_comparison import ComparedCriterion, ComparedMeasurement, Comparison

MOVED = {
    "worse": "Worse in B",
    None: "Not paired, so neither better nor worse",
    "unclear": "No further apart than pairing leaves to chance",
    "same": "The same count",
    "better": "Better in B",
}
"""Criteria by their movement, in the order of printing."""


def compare(
    a: Annotated[
        str,
        typer.Argument(help="First run: id, unique prefix, or latest.", metavar="A"),
    ],
    b: Annotated[str, typer.Argument(help="Second run, compared with the first.", metavar="B")],
    limit: Annotated[int, typer.Option(min=0, help="Show this many flipped items; --json lists all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: criteria, differences and flips.

    The runs may be of one branch or of two. A difference is that of B and A, paired item by item where both evaluated
    the same. Each interval holds by itself; among many, some miss.
    """
    from q36eval.history.run_comparison import compare as beside

    history = open_history()
    one, other = history.get_run(a), history.get_run(b)
    comparison = beside(history, one, other)
    if as_json:
        print_json(json.loads(comparison.model_dump_json()))
        return
    _print(comparison, one, other, limit)


def _print(comparison: "Comparison", a: "RunRecord", b: "RunRecord", limit: int) -> None:
    from q36eval.app.cli.tables import print_plain
    from q36eval.app.dashboard.models.compare import differing_rows

    for name, run in (("A", a), ("B", b)):
        headline = f"{run.state}, no verdict" if run.report is None else run.report.headline
        print_plain(f"{name}  {run.id}  {branch_title(run.family, run.branch)}  {headline}")
    if comparison.differing:
        print("Differs in:")
    for row in differing_rows(comparison):
        print_plain(f"  {row['field']}: {row['A']} -> {row['B']}")
    if not comparison.differing:
        print("The two runs measured the same deployment in the same way.")
    for movement, title in MOVED.items():
        _print_rows(f"{title}:", [_criterion_row(one) for one in comparison.criteria if one.movement == movement])
    _print_rows("Figures, A and B:", [_measurement_row(m) for m in comparison.measurements])
    for line in _why_apart(comparison):
        print_plain(line)
    _print_flips(comparison, limit)


def _print_rows(title: str, rows: list[tuple[str, ...]]) -> None:
    from q36eval.app.cli.tables import print_columns

    if rows:
        print(title)
    print_columns(rows, "  ")


def _criterion_row(one: "ComparedCriterion") -> tuple[str, ...]:
    from q36eval.app.dashboard.models.compare import difference_text
    from q36eval.reports.text import figure_text

    verdicts = dict.fromkeys((_judged(one.a), _judged(one.b)))
    figures = dict.fromkeys("–" if of is None else figure_text(of) for of in (one.a, one.b))
    against = " → ".join(figures) if one.difference is None else difference_text(one.difference, one.unit)
    return one.id, " → ".join(verdicts), against


def _measurement_row(one: "ComparedMeasurement") -> tuple[str, ...]:
    from q36eval.app.dashboard.models.compare import difference_text
    from q36eval.reports.text import number

    return one.key, f"{number(one.a)} → {number(one.b)}", difference_text(one.difference, one.unit)


def _judged(result: "CriterionResult | None") -> str:
    from q36eval.reports.text import verdict_text

    return "not judged" if result is None else verdict_text(result)


def _why_apart(comparison: "Comparison") -> list[str]:
    """The unpaired criteria, by reason."""
    reasons: dict[str, list[str]] = {}
    for criterion in comparison.criteria:
        if criterion.why:
            reasons.setdefault(criterion.why, []).append(criterion.id)
    for measurement in comparison.measurements:
        if measurement.why:
            reasons.setdefault(measurement.why, []).append(measurement.key)
    return [f"No paired difference of {', '.join(names)}: {why}." for why, names in reasons.items()]


def _print_flips(comparison: "Comparison", limit: int) -> None:
    from q36eval.app.cli.tables import print_plain
    from q36eval.app.dashboard.models.compare import flip_words

    for counts in comparison.flips:
        print_plain(flip_words(counts))
    for flip in comparison.flipped[:limit]:
        print_plain(f"  {flip.way}  {flip.cluster}  {flip.item_key[:12]}")
    if len(comparison.flipped) > limit:
        print(f"  and {len(comparison.flipped) - limit} more; --json lists all, with both answers")
