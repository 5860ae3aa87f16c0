"""The report as one HTML file to open, mail and keep: no script, no network, light and dark."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from q36eval.gate.report import CriterionResult, GateReport, LaneResult
from q36eval.records import DeploymentIdentity, Measurement, Verdict
from q36eval.reports._page import bullets, page, section, table
from q36eval.reports._plots import MARK, criteria_plot, flips_plot, kl_plot
from q36eval.reports._text import (
    ADVISORY_NOTE,
    COLUMNS,
    NUMERIC,
    SENTENCE,
    counts_text,
    figure_text,
    floor_text,
    held_lines,
    html,
    interval_text,
    margin_text,
    name_text,
    number,
    verdict_text,
    why_text,
)
from q36eval.reports.answers import TITLE, answer_lines
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, recovery_asked
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
    from q36eval.gate.report import CriterionVerdict
    from q36eval.history.records import RunRecord


def to_html(report: GateReport, run: "RunRecord | None" = None, measurements: Sequence[Measurement] = ()) -> str:
    """Verdict first, lanes, what decided and how nearly, what to do; plots; then all criteria, gaps and provenance."""
    subject = "" if run is None else f" {run.family}/{run.branch}"
    body = "\n".join(filter(None, (*_verdict(report, run), *_sections(report, run, measurements))))
    return page(f"{report.headline}{subject}", body)


def _verdict(report: GateReport, run: "RunRecord | None") -> Iterator[str]:
    named = "" if run is None else f" {html(run.family)}/{html(run.branch)}"
    yield f"<h1>{_says(report.verdict, report.headline)}{named}</h1>"
    told = [f"policy {html(report.policy)}", f"exit code {report.exit_code}"]
    if run is not None:
        told = [f"run {html(run.id)}", f"{run.started:%Y-%m-%d %H:%M} UTC", *told]
    yield f'<p class="soft">{", ".join(told)}</p>'
    yield f'<div class="lanes">{"".join(_lane(report, lane) for lane in report.lanes)}</div>'


def _lane(report: GateReport, lane: LaneResult) -> str:
    named = ", ".join(html(result.id) for result in decided_by(report, lane))
    how = "decided by" if lane.decisive else "nearest to turning:"
    told = f'<p class="soft">{how} {named}</p>' if named else ""
    return (
        f'<div class="lane {lane.verdict}"><h3>{html(lane.lane)}</h3>{_says(lane.verdict, lane.headline)}{told}</div>'
    )


def _says(verdict: "Verdict | CriterionVerdict", words: str) -> str:
    return f'<span class="verdict {verdict}">{MARK[verdict]} {html(words)}</span>'


def _sections(report: GateReport, run: "RunRecord | None", measurements: Sequence[Measurement]) -> Iterator[str]:
    decided = [
        f"<b>{html(r.id)}</b> {_says(r.verdict, verdict_text(r))}: {html(decision_line(r))}" for r in decided_by(report)
    ]
    yield section(decided_title(report), bullets(decided))
    steps = [f"<code>{html(step.command)}</code> {html(step.why)}" for step in next_steps(report, run)]
    yield section("Next", bullets(steps))
    seen = [f'<a href="{html(link.address)}">{html(link.words)}</a>' for link in links(report, run)]
    yield section("In the review UI", bullets(seen))
    yield section("Criteria against their margins", criteria_plot(report))
    yield section("KL divergence by slice", kl_plot(report, measurements))
    yield section("Flips", flips_plot(measurements), _lengths(report, measurements))
    yield section("All criteria", table(COLUMNS, map(_cells, report.criteria), NUMERIC), _advisory(report))
    answers = [f"<b>{html(name)}</b>: {html(told)}" for name, told in answer_lines(report)]
    yield section(TITLE, bullets(answers))
    yield section("Margins that depend on the scheme", bullets(html(line, SENTENCE) for line in held_lines(report)))
    why = [f"<b>{html(r.id)}</b> {_says(r.verdict, verdict_text(r))}: {html(why_text(r))}" for r in reasons(report)]
    yield section("Why", bullets(why))
    yield section("Not measured", bullets(_gap(reason, names) for reason, names in not_measured(report)))
    helping = [f"<b>{html(remedy.criterion)}</b>: {html(remedy_text(remedy))}" for remedy in report.remedies]
    yield section("What would help", bullets(helping))
    yield section(
        "Asked, in this order", bullets(f"<b>{html(s.name)}</b>: {html(stage_text(s))}" for s in report.stages)
    )
    yield section("Notes", bullets(html(note) for note in notes(report, run)))
    yield section("What was judged", *([] if run is None else _provenance(run)))


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
    return (*map(html, cells), _says(result.verdict, verdict_text(result)))


def _advisory(report: GateReport) -> str:
    advisory = any(result.tier == "advisory" for result in report.criteria)
    return f'<p class="soft">{html(ADVISORY_NOTE)}</p>' if advisory else ""


def _lengths(report: GateReport, measurements: Sequence[Measurement]) -> str:
    lengths = effective_lengths(EvalsFigures(measurements), recovery_asked(report))
    return "".join(f"<p>{html(effective_words(found))}</p>" for found in lengths.values())


def _gap(reason: str, names: tuple[str, ...]) -> str:
    named = ", ".join(f"<b>{html(name)}</b>" for name in names)
    return f"{named}: {html(reason)}" if named else html(reason)


def _provenance(run: "RunRecord") -> Iterator[str]:
    rows = [("started", f"{run.started:%Y-%m-%d %H:%M:%S} UTC")]
    if run.finished is not None:
        rows.append(("finished", f"{run.finished:%Y-%m-%d %H:%M:%S} UTC"))
    rows += [(f"seconds, {name}", number(seconds)) for name, seconds in sorted(run.timings.items())]
    for whose, identity in (("branch", run.identity), ("reference", run.reference_identity)):
        rows += [] if identity is None else _identity(whose, identity)
    rows += [(f"suite of {probe}", sha256) for probe, sha256 in sorted(run.suites.items())]
    rows += [(name, _value(value)) for name, value in sorted(run.provenance.items())]
    yield table(("what", "is"), ((html(name), html(value)) for name, value in rows))


def _identity(whose: str, identity: DeploymentIdentity) -> Iterator[tuple[str, str]]:
    for name, value in identity.model_dump().items():
        yield f"{whose}: {name.replace('_', ' ')}", _value(value)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items()) or "–"
    return str(value)
