"""The output of `q36eval canaries --branch NAME`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from q36eval.app.cli.tables import flip_parts, print_run, rows_table
from q36eval.app.figures.canaries import (
    FAILURE_RATE,
    CanaryRun,
    batches_words,
    margin_rows,
    must_pass_words,
    other_rows,
    rate_rows,
)
from q36eval.app.figures.canary_items import (
    at_risk,
    flips,
    margin_words,
    parting_words,
    reasons,
)
from q36eval.app.figures.deciding_answers import item_name
from q36eval.canaries.must_pass import Standing
from q36eval.canaries.outcomes import AT_RISK_NATS
from q36eval.inert_text import plain
from q36eval.records import ItemOutcome, ProbeName
from q36eval.reports.story import unable_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from q36eval.history import History, RunRecord

LABELS = {
    Standing.FLIPPED: "✗ confirmed flip",
    Standing.UNSTABLE: "~ unstable",
    Standing.NO_CANARY: "– no canary, the reference fails",
    Standing.UNCONFIRMED: "? flipped once, not repeated",
    Standing.UNKNOWN: "? not known",
}
FLIPS_SHOWN = 3
AT_RISK_SHOWN = 10


def canary_run(run: "RunRecord", history: "History") -> CanaryRun:
    """The canaries of a run in history."""
    return CanaryRun.of(history.measurements(run.id), history.items(run.id, ProbeName.CANARIES))


def print_summary(run: "RunRecord", history: "History") -> None:
    """Fixed prompts by result, rates, margins, answers at risk, the first flips, and missing measurements."""
    print_run(run, history, summary_parts(canary_run(run, history)))


def summary_parts(run: CanaryRun) -> Iterator["RenderableType"]:
    """The report, piece by piece; every text of a model is one harmless line."""
    if not run.measurements and not run.items:
        yield "No canary was evaluated."
        return
    yield must_pass_words(run)
    yield from _must_pass_lines(run)
    for rows, right in (
        (rate_rows(run), (1, 2, 5, 6, 7)),
        (margin_rows(run), (1, 2, 4)),
        (other_rows(run), (2, 3, 5, 6)),
    ):
        if rows:
            yield ""
            yield rows_table(rows, right=right, whole=(0,))
    yield from map(plain, unable_words(run.found(FAILURE_RATE)))
    yield from _risk_lines(at_risk(run.items))
    yield from _flip_parts(flips(run.items))


def _must_pass_lines(run: CanaryRun) -> Iterator[str]:
    for name, items in run.must_pass().items():
        for item in items if name is not Standing.PASSED else ():
            side = item.reference if name is Standing.NO_CANARY else item.branch
            words = [*reasons(side)[:1], batches_words(item)]
            why = "; ".join(word for word in words if word)
            yield f"  {LABELS[name]}  {plain(item_name(item))}: {plain(why)}"


def _risk_lines(items: Sequence[ItemOutcome]) -> Iterator[str]:
    if not items:
        return
    shown = items[:AT_RISK_SHOWN]
    more = f", the {len(shown)} nearest to a flip" if len(shown) < len(items) else ""
    yield f"\n{len(items)} right answers at risk, with a margin below {AT_RISK_NATS:g} nats{more}:"
    for item in shown:
        yield f"  {plain(item_name(item))}: {plain(margin_words(item) or '')}"


def _flip_parts(flipped: Sequence[ItemOutcome]) -> Iterator["RenderableType"]:
    """The first flips of each direction, with failed checks and the point where the answers diverge."""
    ways = ("regression", "improvement")
    shown = [item for way in ways for item in [one for one in flipped if one.flip == way][:FLIPS_SHOWN]]

    def remarks(item: ItemOutcome) -> Iterator[str | None]:
        wrong = item.branch if item.flip == "regression" else item.reference
        yield from (f"wrong      {reason}" for reason in reasons(wrong))
        yield from (parting_words(item), margin_words(item))

    return flip_parts(flipped, shown, lambda item: f"{item_name(item)}{' (fixed)' * bool(item.must_pass)}", remarks)
