"""The report for a terminal."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from q36eval.reports.deciding import ANSWERS_TITLE
from q36eval.reports.document import Document, Entry
from q36eval.reports.text import COLUMNS, MAX_CHARACTERS, NUMERIC, SENTENCE, name_text, plain, verdict_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

STYLES = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow", "NOT_MEASURED": "bold magenta"}
WIDE_ONLY = ("lanes", "branch", "reference", "floor", "scored")
WIDE = 110


def to_console(document: Document) -> "RenderableType":
    """Verdict first, lanes, what decided and how nearly, a table of criteria; then why anything is not PASS, what was
    not measured, where evaluation stopped, and what to do. No text is read as markup."""
    return _ConsoleReport(document)


@dataclass(frozen=True)
class _ConsoleReport:
    """Lays itself out for the width it is given."""

    document: Document

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> Iterator["RenderableType"]:
        document = self.document
        yield _verdict_line(document)
        yield from _lane_lines(document)
        yield from _listed(document.decided.title, map(_entry, document.decided.entries))
        yield from _listed(ANSWERS_TITLE, (_text(answer.name) for answer in document.answers))
        yield _criteria_table(document, wide=options.max_width >= WIDE)
        for section in (document.held, document.floors):  # their lines say themselves what they are of
            yield from map(_entry, section.entries)
        for section in document.details:
            yield from _listed(section.title, map(_entry, section.entries))
        steps = [(step.command, step.why) for step in document.next_steps]
        steps += [(link.address, link.words) for link in document.links]
        yield from _listed(
            "Next", (_text(what, "bold cyan").append("  ").append_text(_text(why)) for what, why in steps)
        )
        if document.run is not None and document.run.entry is not None:
            yield _text(f"Entry in the history's chain: {document.run.entry}", "dim")


def _text(content: str, style: str = "", limit: int = MAX_CHARACTERS) -> "Text":
    from rich.text import Text

    return Text(plain(content, limit), style=style)


def _verdict_line(document: Document) -> "Text":
    report, run = document.report, document.run
    line = _text(report.headline, STYLES[report.verdict])
    if run is not None:
        line.append("  ").append_text(_text(f"{document.subject}, run {run.id}"))
    return line.append("  ").append_text(_text(f"(policy {report.policy}, exit code {report.exit_code})"))


def _lane_lines(document: Document) -> Iterator["Text"]:
    for lane in document.report.lanes:
        line = _text("").append(f"  {lane.lane:<12}").append_text(_text(lane.headline, STYLES[lane.verdict]))
        how, names = document.deciding_lane(lane)
        if lane.decisive:
            line.append(f"  {how} ").append_text(_text(", ".join(names)))
        yield line


def _criteria_table(document: Document, *, wide: bool) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    names = [name for name in COLUMNS if wide or name not in WIDE_ONLY]
    for name in names:
        justify: Literal["left", "right"] = "right" if name in NUMERIC else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "verdict")
    for row in document.criteria:
        cells = row.cells | {"lanes": " ".join(lane.value[0].upper() for lane in row.result.lanes)}
        if not wide:  # the id, which has no place to break, stands in the lines above and below
            cells["criterion"] = name_text(row.result, with_id=False)
        styles = {"verdict": STYLES[row.result.verdict]}
        table.add_row(*(_text(cells[name], styles.get(name, "")) for name in names))
    if document.advisory_note:
        table.caption, table.caption_justify = _text(document.advisory_note), "left"
    return table


def _listed(title: str, lines: "Iterable[Text]") -> Iterator["RenderableType"]:
    """A heading and what stands under it; nothing where there is nothing."""
    from rich.padding import Padding

    shown = list(lines)
    if shown:
        yield _text(title, "bold underline")
        yield from (Padding(line, (0, 0, 0, 2)) for line in shown)


def _entry(entry: Entry) -> "Text":
    line = _text(", ".join(entry.about), "bold", SENTENCE)
    if entry.result is not None:
        line.append(" ").append_text(_text(verdict_text(entry.result), STYLES[entry.result.verdict]))
    text = _text(entry.text, limit=SENTENCE if entry.long else MAX_CHARACTERS)
    return line.append(": ").append_text(text) if entry.about else text
