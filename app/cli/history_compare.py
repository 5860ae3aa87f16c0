"""`q36eval history compare`: two runs beside each other."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.records import branch_title

if TYPE_CHECKING:
    from q36eval.gate import CriterionResult
    from q36eval.history import RunRecord
    from q36eval.history.run_comparison import ComparedCriterion, ComparedMeasurement, Comparison, PairedDifference


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
    from rich.console import Console

    from q36eval.app.cli.tables import plain_table, print_plain
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
    console = Console()
    if comparison.criteria:
        rows = [_criterion_row(one) for one in sorted(comparison.criteria, key=lambda one: one.urgency)]
        table = plain_table(("criterion", "moved", "A", "B", "B against A"), rows, [], [0, 1])
        for place in (2, 3):
            table.columns[place].min_width = len("INCONCLUSIVE")
        console.print(table)
    if comparison.measurements:
        columns = ("figure", "A", "B", "difference of B and A", "interval", "moved")
        console.print(plain_table(columns, [_measurement_row(m) for m in comparison.measurements], [1, 2, 3, 4], [0]))
    for line in _why_apart(comparison):
        print_plain(line)
    _print_flips(comparison, limit)


def _criterion_row(one: "ComparedCriterion") -> list[str]:
    against = "–" if one.difference is None else " ".join(_difference_cells(one.difference)[:2])
    return [one.id, one.movement or "–", _judged(one.a), _judged(one.b), against]


def _measurement_row(one: "ComparedMeasurement") -> list[str]:
    from q36eval.reports.text import number

    return [one.key, number(one.a), number(one.b), *_difference_cells(one.difference)]


def _judged(result: "CriterionResult | None") -> str:
    """The verdict with the figure that it was given on, in the margin's own terms."""
    from q36eval.reports.text import figure_text, verdict_text

    if result is None:
        return "not judged"
    figure = figure_text(result)
    return verdict_text(result) if figure == "–" else f"{verdict_text(result)} {figure}"


def _difference_cells(difference: "PairedDifference | None") -> list[str]:
    from q36eval.app.dashboard.models.compare import difference_row

    shown = difference_row(difference)
    return [shown["B against A"], shown["interval"], "–" if difference is None else difference.movement]


def _why_apart(comparison: "Comparison") -> list[str]:
    """Which were not paired, by the reason."""
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
        print_plain(f"  {flip.way}  {flip.probe}  {flip.group}  {flip.cluster}  {flip.item_key[:12]}")
    if len(comparison.flipped) > limit:
        print(f"  and {len(comparison.flipped) - limit} more; --json lists all, with both answers")
