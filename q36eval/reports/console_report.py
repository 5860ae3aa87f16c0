"""The report for a terminal: the verdict on one screen of 80 columns and 24 rows, and the rest on request."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from q36eval.chat.declared_template import recorded_template
from q36eval.inert_text import MAX_CHARACTERS, SENTENCE, plain
from q36eval.records import Verdict
from q36eval.reports.deciding_answers import ANSWERS_TITLE, cut
from q36eval.reports.document import Document, Entry, Gap
from q36eval.reports.next_step import lapsing
from q36eval.reports.story import by_id, decided_by, no_release_text, shared_engine, worst_first
from q36eval.reports.text import COLUMNS, NUMERIC, verdict_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    from q36eval.gate.report import CriterionResult, LaneResult
    from q36eval.reports.ui_address import Link

STYLES = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "NOT_MEASURED": "bold magenta",
    "NOT_JUDGED": "bold",
}

DECIDING_SHOWN = 4
"""The number of deciding criteria on the one screen."""

MISSING_SHOWN = 2
"""The number of reasons for missing measurements."""

SHARED_SHOWN = 12
"""The displayed characters of the common beginning of two answers."""

DECIDING_COLUMNS = ("criterion", "judged", "margin", "verdict")

FIRST_TO_GO = ("lanes", "floor", "scored", "reference", "branch", "interval")
"""Columns omitted on a narrow terminal, in that order."""

CRITERION_AT_LEAST = 30
CELL_AT_MOST = 26
"""Characters of the column whose words wrap, and of every other one."""


def to_console(document: Document, *, details: bool = True) -> "RenderableType":
    """Verdict, lanes, what decided by name, the first answers that show it, and what to do; no text is read as markup.

    With `details` also the table of all criteria, why anything is not PASS, what was not measured, and where evaluation
    stopped.
    """
    return _Detailed(document) if details else _OneScreen(document)


def verdict_line(document: Document, width: int = MAX_CHARACTERS) -> "Text":
    """The verdict, the branch, the run and the policy: the whole output of a quiet gate. Without room for all, a path
    loses its beginning, then the policy goes: the run stays complete."""
    report, run = document.report, document.run
    line = _text(report.headline, STYLES[report.verdict])
    subject, named = ("", "") if run is None else (document.subject, f", run {run.id}")
    policy = f"{', ' * bool(named)}policy {report.policy}"
    room = width - len(line) - 2 - len(named)
    if room - len(policy) >= min(len(subject), CELL_AT_MOST):
        named, room = named + policy, room - len(policy)
    if len(subject) > (room := max(1, room)):
        subject = f"…{subject[len(subject) + 1 - room :]}"
    return line.append("  ").append_text(_text(f"{subject}{named}"))


@dataclass(frozen=True)
class _OneScreen:
    """Lines other than a criterion's title never exceed the terminal's width."""

    document: Document

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> Iterator["RenderableType"]:
        document, width = self.document, options.max_width
        results = worst_first(decided_by(document.report))
        yield _one_line(verdict_line(document, width))
        yield from (_one_line(_lane_line(lane, document)) for lane in document.report.lanes)
        yield from (_one_line(_text(f"  {words}", "yellow")) for words in _rests_on(document))
        if results:
            yield _text(document.decided.title, "bold underline")
            yield _table(DECIDING_COLUMNS, results[:DECIDING_SHOWN], document, width - 2, headed=False)
        if len(results) > DECIDING_SHOWN:
            yield _text(f"  and {len(results) - DECIDING_SHOWN} more", "dim")
        missing = [gap.reason for gap in document.gaps if _matters(gap, results)][:MISSING_SHOWN]
        yield from _listed("Not measured", (_text(reason, limit=2 * width - 12) for reason in missing))
        yield from _listed(document.findings.title, map(_entry, document.findings.entries))
        yield from _lost(document, width - 2)
        yield from _listed("Next", _steps(document, width))
        yield from _link_lines(document.links[:1])
        if document.run is not None:
            yield _one_line(_text(f"All of it: q36eval report {document.run.id} --details", "dim"))


def _lost(document: Document, width: int, *, whole: bool = False) -> Iterator["RenderableType"]:
    """The largest loss, and each lost answer beside the reference's from where they part; `whole`: a line for each
    side, and the end of the prompt."""
    lines = [_text(document.largest_loss)] if document.largest_loss else []
    for answer in document.answers:
        sides = [" ".join(text.split()) or "(nothing)" for text in (answer.reference, answer.branch)]
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False)))
        shared = max(0, alike - SHARED_SHOWN)
        room = width - 14 if whole else (width - 26) // 2
        reference, branch = (cut("…" * bool(shared) + side[shared:], room) for side in sides)
        lines.append(_one_line(_text(answer.name)))
        told = [f"reference: {reference}  branch: {branch}"]
        if whole:
            lines_asked = [each for each in answer.prompt.splitlines() if each.strip() and not each.startswith("<")]
            asked = cut(lines_asked[-1].partition("<|")[0] if lines_asked else "", room, end=True)
            told = [f"prompt: {asked}", f"reference: {reference}", f"branch: {branch}"]
        lines += [_one_line(_text(f"  {words}", "dim")) for words in told]
    yield from _listed(ANSWERS_TITLE, lines)


def _matters(gap: Gap, deciding: "Sequence[CriterionResult]") -> bool:
    """Whether it prevented the judgement of a deciding criterion, or is a probe that failed to run."""
    broken = gap.failure is not None and gap.failure.of_the_engine
    return not gap.judged and not gap.told and (broken or any(result in deciding for result in gap.criteria))


def _lane_line(lane: "LaneResult", document: Document) -> "Text":
    """The lane's verdict, and the first of the criteria that decided it."""
    line = _lane(lane)
    if lane.decisive:
        criteria = by_id(document.report)
        first, *others = worst_first(criteria[name] for name in lane.decisive if name in criteria)
        line.append("  by ").append_text(_text(first.heading))
        line.append(f" and {len(others)} more" if others else "")
    return line


def _lane(lane: "LaneResult") -> "Text":
    return _text("").append(f"  {lane.lane:<12}").append_text(_text(lane.headline, STYLES[lane.verdict]))


def _rests_on(document: Document) -> Iterator[str]:
    """The basis of the verdict besides the figures."""
    waiver = lapsing(document.report)
    if waiver is not None:
        named = [result.name for result in document.report.criteria if waiver in result.waived_by]
        others = f" and {len(named) - 1} more" if named[1:] else ""
        yield f"waived until {waiver.expires} by {waiver.owner}: {named[0]}{others}"
    run = document.run
    why = no_release_text(document.report, run)
    if document.report.verdict is not Verdict.FAIL and why is not None:
        yield f"{why}: this PASS does not approve a release"
    own = None if run is None else recorded_template(run.provenance)
    if own is not None and own.is_own:
        yield f"asked by its own chat template, declared by {own.by}; the KL by the reference's"
    shared = shared_engine(run)
    if shared is not None:
        yield shared
    yield from document.layer_lines[:1]
    if document.report.awaiting_sign_off:
        yield "a reviewer's sign-off is required and missing, so nothing passes yet"


def _steps(document: Document, width: int) -> Iterator["Text"]:
    """Each command with what it gives: beside it where there is room, else below it."""
    for what, why in [(step.command, step.why) for step in document.next_steps]:
        if len(what) + len(why) + 4 <= width:
            yield _text(what, "bold cyan").append("  ").append_text(_text(why))
        else:
            yield from (_one_line(_text(line, "bold cyan")) for line in _command_lines(what, width - 2))
            yield _text("").append("  ").append_text(_text(why, limit=2 * width - 12))


def _link_lines(links: "Iterable[Link]") -> Iterator["Text"]:
    """An address breaks at a line's end: terminals still open it, and it can be copied."""
    for link in links:
        line = _text(f"{link.words}: ").append_text(_text(link.address, "cyan"))
        line.overflow = "fold"
        yield line


def _command_lines(command: str, width: int) -> Iterator[str]:
    """A command that can be copied at any width: broken between words, with a `\\` at the break."""
    if len(command) <= width:
        yield command
        return
    line = ""
    for word in map(shlex.quote, shlex.split(command)):
        if line and len(line) + len(word) + 3 > width:
            yield f"{line} \\"
            line = "  "
        line = f"{line} {word}" if line.strip() else line + word
    yield line


@dataclass(frozen=True)
class _Detailed:
    """Lays itself out for the width it is given."""

    document: Document

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> Iterator["RenderableType"]:
        document = self.document
        yield verdict_line(document)
        yield _text(f"  exit code {document.report.exit_code}", "dim")
        yield from _lane_lines(document)
        yield from (_text(f"  {words}", "yellow") for words in _rests_on(document))
        yield from _listed(document.decided.title, map(_entry, document.decided.entries))
        yield from _listed(document.findings.title, map(_entry, document.findings.entries))
        yield from _lost(document, options.max_width - 2, whole=True)
        results = [row.result for row in document.criteria]
        yield _table(COLUMNS, results, document, options.max_width, headed=True)
        for section in (document.held, document.floors):  # their lines say themselves what they are of
            yield from map(_entry, section.entries)
        for section in document.details:
            yield from _listed(section.title, map(_entry, section.entries))
        yield from _listed("Next", _steps(document, options.max_width))
        yield from _listed("In the review UI", _link_lines(document.links))


def _text(content: str, style: str = "", limit: int = MAX_CHARACTERS) -> "Text":
    """Harmless, with the indentation it is given; a word longer than the terminal is cut, never broken."""
    from rich.text import Text

    indent = content[: len(content) - len(content.lstrip(" "))]
    return Text(indent + plain(content, limit), style=style, overflow="ellipsis")


def _one_line(text: "Text") -> "Text":
    text.no_wrap = True
    return text


def _lane_lines(document: Document) -> Iterator["Text"]:
    for lane in document.report.lanes:
        line = _lane(lane)
        how, names = document.deciding_lane(lane)
        if lane.decisive:
            line.append(f"  {how} ").append_text(_text(", ".join(names)))
        yield line


def _table(
    columns: Sequence[str], results: "Sequence[CriterionResult]", document: Document, width: int, *, headed: bool
) -> "RenderableType":
    """The criteria in as many of the columns as fit `width`: none is ever wider, no word and no id is broken."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    cells = {row.result.id: row.cells for row in document.criteria}
    shown, widths = _fitting(columns, [cells[result.id] for result in results], width)
    table = Table(
        box=box.SIMPLE_HEAD if headed else None,
        show_header=headed,
        padding=(0, 1 if headed else 2, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for name in shown:
        justify: Literal["left", "right"] = "right" if name in NUMERIC else "left"
        table.add_column(name, justify=justify, overflow="ellipsis", width=widths[name])
    for result in results:
        table.add_row(*(_cell(result, name, cells[result.id][name]) for name in shown))
    if headed and document.advisory_note:
        table.caption, table.caption_justify = _text(document.advisory_note), "left"
    return table if headed else Padding(table, (0, 0, 0, 2), expand=False)


def _fitting(columns: Sequence[str], rows: Sequence[dict[str, str]], width: int) -> tuple[list[str], dict[str, int]]:
    """The columns that fit, and how wide each is: the criterion's takes what the others leave."""
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    natural = widths["criterion"]
    widths = {name: min(each, CELL_AT_MOST) for name, each in widths.items()}
    shown = list(columns)
    for name in ("", *FIRST_TO_GO):
        shown = [column for column in shown if column != name]
        room = width - 2 - sum(widths[column] + 2 for column in shown if column != "criterion")
        if room >= min(natural, CRITERION_AT_LEAST):
            break
    return shown, widths | {"criterion": max(8, min(natural, room))}


def _cell(result: "CriterionResult", column: str, words: str) -> "Text":
    if column == "verdict":
        return _text(words, STYLES[result.verdict])
    if column != "criterion":
        return _text(words)
    star = "*" if result.tier == "advisory" else ""
    return _text(result.heading).append_text(_text(f" ({result.id}){star}", "dim"))


def _listed(title: str, lines: "Iterable[Text]") -> Iterator["RenderableType"]:
    """A heading with its lines; nothing without lines."""
    from rich.padding import Padding

    shown = list(lines)
    if shown:
        yield _text(title, "bold underline")
        yield from (Padding(line, (0, 0, 0, 2), expand=False) for line in shown)


def _entry(entry: Entry) -> "Text":
    line = _text("").append_text(_text(", ".join(entry.about), "bold", SENTENCE))
    if entry.result is not None:
        line.append(" ").append_text(_text(verdict_text(entry.result), STYLES[entry.result.verdict]))
    text = _text(entry.text, limit=SENTENCE if entry.long else MAX_CHARACTERS)
    return line.append(": ").append_text(text) if entry.about else text
