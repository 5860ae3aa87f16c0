"""An inspection as tables. Names and messages come from files: they are text of one line, never markup or control."""

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from q36eval.app.cli.tables import plain_table
from q36eval.checkpoints.inspection import Inspection, Section, Severity
from q36eval.inert_text import SENTENCE, plain

SHOWN = 20
"""The number of findings per rule that are listed individually."""
STYLES = {Severity.BLOCKING: "bold red", Severity.ADVISORY: "yellow"}


def print_inspection(inspection: Inspection, run: str, *, findings_only: bool) -> None:
    """Findings first, blocking ones in front; then coverage and error per class."""
    console = Console()
    against = "" if findings_only else f", compared with {inspection.reference or 'no reference'}"
    console.print(_text(f"{inspection.checkpoint}{against} (run {run})"))
    _findings(console, inspection)
    if findings_only:
        return
    if inspection.schemes is not None:
        counted = ", ".join(f"{name} ({count} weights)" for name, count in inspection.schemes.items())
        share = inspection.quantized_share
        of_all = "" if share is None or not counted else f", {share:.1%} of the parameters"
        console.print(_text(f"schemes: {counted or 'nothing is quantized'}{of_all}"), soft_wrap=True)
    if inspection.coverage:
        console.print(_coverage(inspection))
    if inspection.errors:
        _errors(console, inspection)
    for reason, count in inspection.left_out.items():
        console.print(_text(f"left out ({reason}): {count} tensors"), soft_wrap=True)
    missing = [section.value for section in Section if section not in inspection.measured]
    if missing:
        console.print(_text(f"not judged: {', '.join(missing)}", style="yellow"))


def _findings(console: Console, inspection: Inspection) -> None:
    if not inspection.blocking:
        console.print(_text("No blocking finding.", style="green"))
    shown: Counter[str] = Counter()
    for finding in inspection.findings:
        shown[finding.rule] += 1
        if shown[finding.rule] > SHOWN:
            continue
        line = Text(f"{finding.severity.value} ", style=STYLES[finding.severity])
        line.append_text(_text(f"{finding.rule} [{finding.subject}]: {finding.message}", style="default"))
        console.print(line, soft_wrap=True)
    for rule, count in shown.items():
        if count > SHOWN:
            console.print(_text(f"{rule}: {count - SHOWN} more (--json lists them all)"))


def _coverage(inspection: Inspection) -> Table:
    columns = ("coverage", "declared", "stored", "n", "bits each", "bytes")
    rows = [
        (
            row.tensor_class,
            row.declared,
            row.stored,
            str(row.count),
            f"{row.bits_per_weight:.2f}",
            f"{row.stored_bytes:,}",
        )
        for row in inspection.coverage
    ]
    return plain_table(columns, rows, right=(3, 4, 5))


def _errors(console: Console, inspection: Inspection) -> None:
    columns = ("relative error", "stored", "n", "median", "worst", "median dB", "worst dB", "of bound")
    rows = [
        (
            *(row.tensor_class, row.stored, str(row.count)),
            *(f"{row.median_relative_error:.4f}", f"{row.worst_relative_error:.4f}"),
            *(f"{row.median_sqnr_db:.1f}", f"{row.worst_sqnr_db:.1f}"),
            "unknown" if row.worst_bound_usage is None else f"{row.worst_bound_usage:.0%}",
        )
        for row in inspection.errors
        if row.worst_relative_error > 0
    ]
    if rows:
        console.print(plain_table(columns, rows, right=range(2, 8)))
    for row in inspection.errors:
        if row.worst_relative_error > 0:
            console.print(_text(f"worst of {row.tensor_class} as {row.stored}: {row.worst}"), soft_wrap=True)
    exact = [f"{row.count} {row.tensor_class}" for row in inspection.errors if row.worst_relative_error == 0]
    if exact:
        console.print(_text(f"equal to the reference: {', '.join(exact)}"), soft_wrap=True)


def _text(content: str, style: str = "") -> Text:
    return Text(plain(content, SENTENCE), style=style)
