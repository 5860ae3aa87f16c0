"""A gate run's report, built once: its whole content in plain text that each format lays out and escapes.

Missing measurements and their reasons are determined only here (`not_measured`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from q36eval.gate.fault_layer import LayerAtFault
from q36eval.gate.report import UNMEASURED, CriterionResult, CriterionVerdict, GateReport, LaneResult, Stage, StageState
from q36eval.provenance import OPTIONS
from q36eval.records import Measurement, ProbeFailure, ProbeName, branch_title
from q36eval.reports import story
from q36eval.reports.deciding_answers import MOST, DecidingAnswer
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, judged_fewer, recovery_asked
from q36eval.reports.next_step import NOTHING_SINCE, NextStep, Since, next_steps
from q36eval.reports.size_plot import SizedBranch
from q36eval.reports.text import (
    ADVISORY_NOTE,
    COLUMNS,
    counts_text,
    figure_text,
    floor_lines,
    floor_text,
    held_lines,
    interval_text,
    margin_text,
    name_text,
    number,
    value_text,
    verdict_text,
    why_text,
)
from q36eval.reports.ui_address import Link, links

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


TEMPLATE_TITLE = "Chat template"
LAYER_TITLE = "Checkpoint or engine"


@dataclass(frozen=True)
class Gap:
    """A missing measurement, with the reason: its `criteria`, a `stage` or a `failure`.

    `judged`: the criterion still has a verdict, but no publishable figure. `told`: the criteria's own reasons already
    name the failure.
    """

    reason: str
    criteria: tuple[CriterionResult, ...] = ()
    stage: Stage | None = None
    failure: ProbeFailure | None = None
    judged: bool = False
    told: bool = False


def not_measured(report: GateReport) -> tuple[Gap, ...]:
    """The missing measurements with reasons: criteria (blocking ones first), stages, failed probes."""
    grouped: dict[str, list[CriterionResult]] = {}
    without_figure = []
    for result in report.criteria:
        if result.verdict in UNMEASURED:
            grouped.setdefault(result.reason, []).append(result)
        elif any(figure is None or math.isnan(figure) for figure in (result.value, result.figure)):
            without_figure.append(Gap(why_text(result), (result,), judged=True))
    known = " ".join(grouped)
    return (
        *(Gap(why, tuple(sorted(of, key=lambda r: r.tier != "blocking"))) for why, of in grouped.items()),
        *without_figure,
        *(Gap(story.stage_text(s, report), stage=s) for s in report.stages if s.state is not StageState.MEASURED),
        *(Gap(f.sentence, failure=f, told=f.reason in known) for f in report.failures),
    )


@dataclass(frozen=True)
class Entry:
    """One line of a list: what it is about (empty where it speaks for itself), its result, and what is said of it."""

    text: str
    about: tuple[str, ...] = ()
    result: CriterionResult | None = None
    long: bool = False
    """Whether it lists names that are worth more room than a line of another's text gets."""


@dataclass(frozen=True)
class Section:
    """A heading with its lines; an empty section is not shown."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Row:
    """One criterion in the table, cells by `COLUMNS`."""

    result: CriterionResult
    cells: dict[str, str]


@dataclass(frozen=True)
class Document:
    """One report. Its texts are the original ones of people and models: every format escapes them itself.

    `measurements` are the run's; without them only the policy's figures are reported. `answers` show why it did not
    pass. `since` is people's actions on the run since its decision, `superseded` the branch's present state if a PASS
    no longer approves a release. `layer` is the layer at fault, checkpoint or engine, None if not determined.
    `largest_loss` is the canary with most lost answers; `sizes` are the comparable branches of its family, itself
    included.
    """

    report: GateReport
    run: "RunRecord | None" = None
    measurements: Sequence[Measurement] = ()
    answers: Sequence[DecidingAnswer] = ()
    since: Since = NOTHING_SINCE
    superseded: str | None = None
    layer: LayerAtFault | None = None
    largest_loss: str = ""
    sizes: Sequence[SizedBranch] = ()

    @property
    def subject(self) -> str:
        """Family and branch, or a folder's path; empty without a run."""
        return "" if self.run is None else branch_title(self.run.family, self.run.branch)

    @property
    def layer_lines(self) -> tuple[str, ...]:
        """Whether the checkpoint or the engine is at fault, in sentences, the layer first."""
        return () if self.layer is None else self.layer.lines

    @cached_property
    def evals(self) -> EvalsFigures:
        """What accuracy alone hides of the evals."""
        return EvalsFigures(self.measurements)

    @cached_property
    def decided(self) -> Section:
        """The deciding criteria and their distances."""
        title = story.decided_title(self.report)
        return Section(title, tuple(_judged(r, story.decision_line(r)) for r in story.decided_by(self.report)))

    @cached_property
    def findings(self) -> Section:
        """The deciding findings of the inspection: file or tensor, and its fault; the first of each criterion."""
        notes = {measurement.key: measurement.note for measurement in self.measurements}
        failed = [result for result in story.decided_by(self.report) if result.verdict is CriterionVerdict.FAIL]
        of_weights = [result for result in failed if result.probe is ProbeName.WEIGHTS]
        lines = [line for r in of_weights for line in notes.get(r.key, "").splitlines()[: -(-MOST // len(of_weights))]]
        return Section("Found in the checkpoint", tuple(Entry(line, long=True) for line in lines))

    @cached_property
    def next_steps(self) -> tuple[NextStep, ...]:
        """What to do about it."""
        return next_steps(self.report, self.run, self.since)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Where the UI shows it, where one is named."""
        return links(self.report, self.run)

    @cached_property
    def criteria(self) -> tuple[Row, ...]:
        """Every criterion, the worst first. (The JSON report keeps the order that `GateReport` promises.)"""
        return tuple(map(_row, story.worst_first(self.report.criteria)))

    @property
    def advisory_note(self) -> str:
        """What the star of advisory criteria means; empty where none has it."""
        return ADVISORY_NOTE if any(result.tier == "advisory" for result in self.report.criteria) else ""

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """The missing measurements, with reasons."""
        return not_measured(self.report)

    @cached_property
    def held(self) -> Section:
        """The margins in use, for those that depend on the scheme."""
        lines = (Entry(line, long=True) for line in held_lines(self.report))
        return Section("Margins that depend on the scheme", tuple(lines))

    @cached_property
    def floors(self) -> Section:
        """The reference's differences from itself."""
        return Section("Noise floor: the reference against itself", _lines(floor_lines(self.report)))

    @cached_property
    def details(self) -> tuple[Section, ...]:
        """The sections below the table: reasons, missing parts, suggestions, and the order of evaluation."""
        report, names = self.report, story.by_id(self.report)
        answers = (Entry(words, (names[name].name,)) for name, words in story.answer_lines(report))
        why = (_judged(result, why_text(result)) for result in story.reasons(report))
        missing = (
            Entry(gap.reason, tuple(result.name for result in gap.criteria))
            for gap in self.gaps
            if gap.stage is None and not gap.judged and not gap.told
        )
        helping = (Entry(text, (result.name,)) for result, text in story.helping(report))
        stages = (Entry(story.stage_text(stage, report), (stage.name,)) for stage in report.stages)
        return (
            Section(story.TITLE, tuple(answers)),
            Section("Why", tuple(why)),
            Section(LAYER_TITLE, tuple(Entry(words, long=True) for words in self.layer_lines)),
            Section("Not measured", tuple(missing)),
            Section("What would help", tuple(helping)),
            Section("Evaluated, in this order", tuple(stages)),
            Section(TEMPLATE_TITLE, tuple(Entry(words, long=True) for words in story.template_lines(self.run))),
            Section("Notes", _lines(story.notes(report, self.run))),
        )

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """Up to which length of the prompts enough is recovered, and which criteria judge fewer items, in sentences."""
        lengths = effective_lengths(self.evals, recovery_asked(self.report))
        return (*map(effective_words, lengths.values()), *judged_fewer(self.report))

    @property
    def provenance(self) -> tuple[tuple[str, str], ...]:
        """What was judged, when and with what."""
        return () if self.run is None else tuple(provenance_of(self.run))

    def deciding_lane(self, lane: LaneResult) -> tuple[str, tuple[str, ...]]:
        """The deciding criteria of a lane: a heading, and the criteria's names."""
        results = story.decided_by(self.report, lane)
        return "decided by" if lane.decisive else "smallest headroom:", tuple(result.name for result in results)


def _judged(result: CriterionResult, text: str) -> Entry:
    return Entry(text, (result.name,), result)


def _lines(texts: Iterable[str]) -> tuple[Entry, ...]:
    return tuple(Entry(text) for text in texts)


def _row(result: CriterionResult) -> Row:
    texts = (
        name_text(result),
        ", ".join(result.lanes),
        value_text(result.value, result.unit),
        value_text(result.reference_value, result.unit),
        figure_text(result),
        interval_text(result),
        floor_text(result),
        margin_text(result.margin, result.unit),
        counts_text(result),
        verdict_text(result),
    )
    return Row(result, dict(zip(COLUMNS, texts, strict=True)))


def provenance_of(run: "RunRecord") -> Iterator[tuple[str, str]]:
    """When it ran, with which code, packages and questions, and the identities of both sides."""
    yield "started", f"{run.started:%Y-%m-%d %H:%M:%S} UTC"
    if run.finished is not None:
        yield "finished", f"{run.finished:%Y-%m-%d %H:%M:%S} UTC"
    yield from ((f"seconds, {name}", number(seconds)) for name, seconds in sorted(run.timings.items()))
    for whose, identity in (("branch", run.identity), ("reference", run.reference_identity)):
        known = {} if identity is None else identity.model_dump()
        yield from ((f"{whose}: {name.replace('_', ' ')}", _value(value)) for name, value in known.items())
    yield from ((f"suite of {probe}", sha256) for probe, sha256 in sorted(run.suites.items()))
    for name, value in sorted(run.provenance.items()):
        yield from () if name == OPTIONS else _rows(name.replace("_", " "), value)


def _rows(name: str, value: object) -> Iterator[tuple[str, str]]:
    """A row for every value, however deep it is nested; none for what is empty, or was not so."""
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from _rows(f"{name}: {part.replace('_', ' ')}", inner)
    elif value is not False and value not in (None, "", [], ()):
        yield name, _value(value)


def _value(value: object) -> str:
    """What was recorded, in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_value(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return "–" if value is None else str(value)
