"""The report as Markdown, for a job summary or a pull request."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport
from q36eval.reports._text import (
    ADVISORY_NOTE,
    counts_text,
    figure_text,
    floor_lines,
    floor_text,
    interval_text,
    margin_text,
    name_text,
    number,
    verdict_text,
    why_text,
)
from q36eval.reports._text import markdown as md

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

HEADER = ("criterion", "lanes", "branch", "reference", "judged", "interval", "floor", "margin", "scored", "verdict")


def to_markdown(report: GateReport, run: "RunRecord | None" = None) -> str:
    """Verdict first, then lanes, criteria, and why anything is not PASS."""
    return "\n".join(_lines(report, run)) + "\n"


def _lines(report: GateReport, run: "RunRecord | None") -> Iterator[str]:
    subject = "" if run is None else f": {md(run.family)}/{md(run.branch)}"
    yield f"# {md(report.headline)}{subject}"
    yield ""
    if run is not None:
        yield f"Run {md(run.id)}, policy {md(report.policy)}, exit code {report.exit_code}."
    else:
        yield f"Policy {md(report.policy)}, exit code {report.exit_code}."
    yield ""
    yield from _table(("lane", "verdict", "decided by"), _lane_cells(report))
    yield ""
    yield from _table(HEADER, (_cells(result) for result in report.criteria))
    if any(result.tier == "advisory" for result in report.criteria):
        yield ""
        yield md(ADVISORY_NOTE)
    yield from _list("Noise floor: the reference against itself", [md(line) for line in floor_lines(report)])
    yield from _list("Why", _reasons(report))
    yield from _list("Probes without figures", [f"{f.probe} {f.kind}: {md(f.reason)}" for f in report.failures])
    yield from _list("Notes", [md(note) for note in report.notes])


def _lane_cells(report: GateReport) -> Iterator[tuple[str, ...]]:
    for lane in report.lanes:
        yield md(lane.lane), f"**{md(lane.headline)}**", ", ".join(md(name) for name in lane.decisive) or "–"


def _cells(result: CriterionResult) -> tuple[str, ...]:
    cells = (
        name_text(result),
        ", ".join(result.lanes),
        number(result.value),
        number(result.reference_value),
        figure_text(result),
        interval_text(result.margin, result.figure_interval),
        floor_text(result),
        margin_text(result.margin, result.unit),
        counts_text(result),
    )
    return (*(md(cell) for cell in cells), f"**{md(verdict_text(result))}**")


def _reasons(report: GateReport) -> list[str]:
    return [
        f"**{md(result.id)}** {md(verdict_text(result))}: {md(why_text(result))}"
        for result in report.criteria
        if result.verdict is not CriterionVerdict.PASS
    ]


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _list(title: str, entries: list[str]) -> Iterator[str]:
    if entries:
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- {entry}" for entry in entries)
