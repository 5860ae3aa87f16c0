"""What `q36eval served` prints: the verdict, every criterion with its figures, and what was seen where none passed."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from q36eval.app.cli.tables import plain_table
from q36eval.gate import CriterionResult, GateReport
from q36eval.history import RunRecord
from q36eval.inert_text import plain
from q36eval.records import Measurement, branch_title
from q36eval.reports.console_report import STYLES

SHOWN = ("call_failure_rate", "rejected_drafts")
"""Figures that are shown whether or not a criterion judges them."""


def server_name(run: RunRecord) -> str | None:
    """The program and what it serves; None where none answered."""
    model = None if run.identity is None else run.identity.settings.get("served_model")
    return None if run.identity is None or model is None else f"{model} by {run.identity.engine_version}"


def print_served(
    run: RunRecord, report: GateReport, measurements: Sequence[Measurement], *, verdict_only: bool = False
) -> None:
    """One table, and for all that is not PASS what was seen; nothing that a server said is read as markup."""
    console = Console()
    line = Text(report.headline, style=STYLES[report.verdict])
    title = branch_title(run.family, run.branch)
    subject = f"{title}, {server_name(run) or 'no server'}, policy {report.policy}, run {run.id}"
    console.print(line.append(plain(f"  {subject}"), style="default"), soft_wrap=True)
    if verdict_only:
        return
    by_key = {measurement.key: measurement for measurement in measurements}
    columns = ("criterion", "changed", "unchanged", "of", "difference", "margin", "verdict")
    rows = [(*_cells(result), Text(result.verdict, style=STYLES[result.verdict])) for result in report.criteria]
    console.print(plain_table(columns, rows, right=(1, 2, 3)))
    for result in report.criteria:
        measurement = by_key.get(_key(result))
        if result.verdict != "PASS":
            seen = "" if measurement is None else f" {measurement.note}."
            console.print(Text(plain(f"{result.heading}: {result.reason}.{seen}")), soft_wrap=True)
    for measurement in measurements:
        if measurement.metric in SHOWN:
            console.print(Text(plain(_shown(measurement))), soft_wrap=True)


def _key(result: CriterionResult) -> str:
    return f"{result.probe}.{result.metric}[{result.slice}]"


def _cells(result: CriterionResult) -> tuple[str, ...]:
    counted = result.margin.kind == "max_count"
    value = "" if result.value is None else f"{result.value:.0f}" if counted else f"{result.value:.1%}"
    reference = "" if result.reference_value is None else f"{result.reference_value:.1%}"
    scored = "" if result.counts is None else f"{result.counts.scored}"
    bounds = result.loss_interval
    interval = "" if bounds is None or counted else f"[{bounds.lower:+.1%}, {bounds.upper:+.1%}]"
    margin = f"{result.margin.value:.0f}" if counted else f"{result.margin.value:.0%}"
    return result.heading, value, reference, scored, interval, margin


def _shown(measurement: Measurement) -> str:
    if measurement.metric == "call_failure_rate":
        causes = measurement.causes
        sides = [] if causes is None else [("served", causes.branch), ("raw", causes.reference)]
        classes = [
            f"{side}: " + ", ".join(f"{name} {n}" for name, n in counts.items()) for side, counts in sides if counts
        ]
        return "Tool calls: " + ". ".join([measurement.note, *classes]) + "."
    bounds = measurement.effect_interval
    return (
        f"Draft tokens rejected: {measurement.value:.1%} [{bounds.lower:.1%}, {bounds.upper:.1%}]; {measurement.note}."
    )
