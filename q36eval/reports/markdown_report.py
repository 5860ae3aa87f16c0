"""The report as Markdown, for a job summary or a pull request."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from q36eval.gate.report import CriterionResult, GateReport
from q36eval.records import Measurement
from q36eval.reports._text import (
    ADVISORY_NOTE,
    COLUMNS,
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
    verdict_text,
    why_text,
)
from q36eval.reports._text import markdown as md
from q36eval.reports.answers import NOT_RIGHT, TITLE, answer_lines, not_right_cell
from q36eval.reports.evals_figures import (
    EvalsFigures,
    GroupFigures,
    effective_lengths,
    effective_words,
    percent,
    ratio_words,
    recovery_asked,
    recovery_words,
    used_words,
)
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
    from q36eval.history.records import RunRecord

EVALS_HEADER = (
    "group",
    "score",
    "reference",
    "recovery, 95 %",
    "items lost",
    "gained",
    "McNemar p",
    "answers changed",
    "scored",
    "errored",
    NOT_RIGHT,
)


def to_markdown(report: GateReport, run: "RunRecord | None" = None, measurements: Sequence[Measurement] = ()) -> str:
    """Verdict first, then lanes, what decided and how nearly, what to do; then all criteria, why anything is not PASS,
    what was not measured, where asking stopped, and what accuracy alone hides of the evals."""
    lines = [
        *_verdict(report, run),
        *_criteria(report),
        *_gaps(report, run),
        *_evals(EvalsFigures(measurements), report),
    ]
    return "\n".join(lines) + "\n"


def _evals(figures: EvalsFigures, report: GateReport) -> Iterator[str]:
    groups, perplexities = figures.groups(), figures.perplexities()
    if groups:
        yield from ("", "## Evals: the same items asked of both", "")
        yield from _table(EVALS_HEADER, map(_group_cells, groups))
    sentences = [effective_words(found) for found in effective_lengths(figures, recovery_asked(report)).values()]
    for sentence in sentences:
        yield from ("", md(sentence))
    if perplexities:
        yield from ("", "## Perplexity, its ratio to the reference's", "")
        rows = ((p.name, ratio_words(p.token), ratio_words(p.word), ratio_words(p.byte)) for p in perplexities)
        yield from _table(("text", "per token", "per word", "per byte"), (tuple(map(md, row)) for row in rows))


def _group_cells(group: GroupFigures) -> tuple[str, ...]:
    cells = (
        group.name,
        percent(group.accuracy.value),
        percent(group.accuracy.reference_value),
        recovery_words(group.recovery),
        number(group.lost),
        number(group.gained),
        number(group.mcnemar),
        percent(None if group.answers_changed is None else group.answers_changed.value),
        used_words(group),
        str(group.accuracy.counts.errored),
        not_right_cell(group.accuracy.causes),
    )
    return tuple(map(md, cells))


def _verdict(report: GateReport, run: "RunRecord | None") -> Iterator[str]:
    subject = "" if run is None else f": {md(run.family)}/{md(run.branch)}"
    yield f"# {md(report.headline)}{subject}"
    yield ""
    if run is not None:
        yield f"Run {md(run.id)}, policy {md(report.policy)}, exit code {report.exit_code}."
    else:
        yield f"Policy {md(report.policy)}, exit code {report.exit_code}."
    yield ""
    yield from _table(("lane", "verdict", "decided by"), _lane_cells(report))
    decided = [f"**{md(r.id)}** {md(verdict_text(r))}: {md(decision_line(r))}" for r in decided_by(report)]
    yield from _list(decided_title(report), decided)
    yield from _list("Next", [f"`{step.command}` – {md(step.why)}" for step in next_steps(report, run)])
    yield from _list("In the review UI", [f"[{md(link.words)}](<{link.address}>)" for link in links(report, run)])


def _lane_cells(report: GateReport) -> Iterator[tuple[str, ...]]:
    for lane in report.lanes:
        yield md(lane.lane), f"**{md(lane.headline)}**", ", ".join(md(name) for name in lane.decisive) or "–"


def _criteria(report: GateReport) -> Iterator[str]:
    yield from ("", "## Criteria", "")
    yield from _table(COLUMNS, (_cells(result) for result in report.criteria))
    if any(result.tier == "advisory" for result in report.criteria):
        yield ""
        yield md(ADVISORY_NOTE)
    yield from _list("Margins that depend on the scheme", [md(line, SENTENCE) for line in held_lines(report)])
    yield from _list("Noise floor: the reference against itself", [md(line) for line in floor_lines(report)])


def _gaps(report: GateReport, run: "RunRecord | None") -> Iterator[str]:
    why = [f"**{md(result.id)}** {md(verdict_text(result))}: {md(why_text(result))}" for result in reasons(report)]
    yield from _list(TITLE, [f"**{md(name)}**: {md(told)}" for name, told in answer_lines(report)])
    yield from _list("Why", why)
    yield from _list("Not measured", [_gap(reason, names) for reason, names in not_measured(report)])
    helping = [f"**{md(remedy.criterion)}**: {md(remedy_text(remedy))}" for remedy in report.remedies]
    yield from _list("What would help", helping)
    yield from _list("Asked, in this order", [f"{md(s.name)}: {md(stage_text(s))}" for s in report.stages])
    yield from _list("Notes", [md(note) for note in notes(report, run)])


def _gap(reason: str, names: tuple[str, ...]) -> str:
    named = ", ".join(f"**{md(name)}**" for name in names)
    return f"{named}: {md(reason)}" if named else md(reason)


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
