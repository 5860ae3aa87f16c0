"""The report for a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from q36eval.gate.report import CriterionResult, GateReport, Remedy
from q36eval.reports._text import (
    ADVISORY_NOTE,
    COLUMNS,
    MAX_CHARACTERS,
    NUMERIC,
    SENTENCE,
    counts_text,
    figure_text,
    floor_lines,
    floor_text,
    held_lines,
    interval_text,
    margin_text,
    name_text,
    number,
    plain,
    verdict_text,
    why_text,
)
from q36eval.reports.answers import TITLE, answer_lines
from q36eval.reports.next_step import next_steps
from q36eval.reports.story import (
    decided_by,
    decided_title,
    decision_line,
    not_measured,
    notes,
    reasons,
    remedy_text,
    stage_text,
)
from q36eval.reports.ui_address import links

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

    from q36eval.history.records import RunRecord

STYLES = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow", "NOT_MEASURED": "bold magenta"}
WIDE_ONLY = ("lanes", "branch", "reference", "floor", "scored")
WIDE = 110


def to_console(report: GateReport, run: "RunRecord | None" = None) -> "RenderableType":
    """Verdict first, lanes, what decided and how nearly, a table of criteria; then why anything is not PASS, what was
    not measured, where asking stopped, and what to do. No text is read as markup."""
    return _ConsoleReport(report, run)


@dataclass(frozen=True)
class _ConsoleReport:
    """Lays itself out for the width it is given."""

    report: GateReport
    run: "RunRecord | None"

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> Iterator["RenderableType"]:
        yield _verdict_line(self.report, self.run)
        yield from _lane_lines(self.report)
        yield from _listed(decided_title(self.report), _decided_lines(self.report))
        yield _criteria_table(self.report, wide=options.max_width >= WIDE)
        yield from (_text(line, limit=SENTENCE) for line in held_lines(self.report))
        yield from (_text(line) for line in floor_lines(self.report))
        yield from _listed(TITLE, [_answers(name, told) for name, told in answer_lines(self.report)])
        yield from _listed("Why", [_reason(result) for result in reasons(self.report)])
        yield from _listed("Not measured", [_gap(why, names) for why, names in not_measured(self.report)])
        yield from _listed("What would help", [_help(remedy) for remedy in self.report.remedies])
        yield from _listed("Asked, in this order", _stage_lines(self.report))
        yield from _listed("Notes", [_text(note) for note in notes(self.report, self.run)])
        yield from _listed("Next", _next_lines(self.report, self.run))


def _text(content: str, style: str = "", limit: int = MAX_CHARACTERS) -> "Text":
    from rich.text import Text

    return Text(plain(content, limit), style=style)


def _verdict_line(report: GateReport, run: "RunRecord | None") -> "Text":
    line = _text(report.headline, STYLES[report.verdict])
    if run is not None:
        line.append("  ").append_text(_text(f"{run.family}/{run.branch}, run {run.id}"))
    return line.append("  ").append_text(_text(f"(policy {report.policy}, exit code {report.exit_code})"))


def _lane_lines(report: GateReport) -> list["Text"]:
    lines = []
    for lane in report.lanes:
        line = _text("").append(f"  {lane.lane:<12}").append_text(_text(lane.headline, STYLES[lane.verdict]))
        if lane.decisive:
            line.append("  decided by ").append_text(_text(", ".join(lane.decisive)))
        lines.append(line)
    return lines


def _criteria_table(report: GateReport, *, wide: bool) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    names = [name for name in COLUMNS if wide or name not in WIDE_ONLY]
    for name in names:
        justify: Literal["left", "right"] = "right" if name in NUMERIC else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in ("criterion", "verdict"))
    for result in report.criteria:
        cells = _cells(result)
        table.add_row(*(cells[name] for name in names))
    if any(result.tier == "advisory" for result in report.criteria):
        table.caption, table.caption_justify = _text(ADVISORY_NOTE), "left"
    return table


def _cells(result: CriterionResult) -> dict[str, "Text"]:
    return {
        "criterion": _text(name_text(result)),
        "lanes": _text(" ".join(lane.value[0].upper() for lane in result.lanes)),
        "branch": _text(number(result.value)),
        "reference": _text(number(result.reference_value)),
        "judged": _text(figure_text(result)),
        "interval": _text(interval_text(result.margin, result.figure_interval)),
        "floor": _text(floor_text(result)),
        "margin": _text(margin_text(result.margin, result.unit)),
        "scored": _text(counts_text(result)),
        "verdict": _text(verdict_text(result), STYLES[result.verdict]),
    }


def _listed(title: str, lines: "Sequence[Text]") -> Iterator["RenderableType"]:
    """A heading and what stands under it; nothing where there is nothing."""
    from rich.padding import Padding

    if lines:
        yield _text(title, "bold underline")
        yield from (Padding(line, (0, 0, 0, 2)) for line in lines)


def _decided_lines(report: GateReport) -> list["Text"]:
    return [
        _text(result.id, "bold")
        .append(" ")
        .append_text(_text(verdict_text(result), STYLES[result.verdict]))
        .append(": ")
        .append_text(_text(decision_line(result)))
        for result in decided_by(report)
    ]


def _reason(result: CriterionResult) -> "Text":
    return _text(result.id, "bold").append(": ").append_text(_text(why_text(result)))


def _answers(name: str, told: str) -> "Text":
    return _text(name, "bold").append(": ").append_text(_text(told))


def _help(remedy: Remedy) -> "Text":
    return _text(remedy.criterion, "bold").append(": ").append_text(_text(remedy_text(remedy)))


def _gap(why: str, names: tuple[str, ...]) -> "Text":
    line = _text(", ".join(names), "bold")
    return line.append(": ").append_text(_text(why)) if names else _text(why)


def _stage_lines(report: GateReport) -> list["Text"]:
    return [_text(stage.name, "bold").append(": ").append_text(_text(stage_text(stage))) for stage in report.stages]


def _next_lines(report: GateReport, run: "RunRecord | None") -> list["Text"]:
    steps = [(step.command, step.why) for step in next_steps(report, run)]
    steps += [(link.address, link.words) for link in links(report, run)]
    return [_text(what, "bold cyan").append("  ").append_text(_text(why)) for what, why in steps]
