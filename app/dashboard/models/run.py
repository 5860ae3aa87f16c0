"""Tables of the run page: criteria, measurements, and what happened to the run. Pure."""

from collections.abc import Iterable

from q36eval.app.dashboard.verdict_style import look_of
from q36eval.gate.report import GateReport, SignOff, Waiver
from q36eval.history import Decision, RunEvent, RunRecord
from q36eval.metrics import metric_of
from q36eval.records import Measurement
from q36eval.reports.document import Document
from q36eval.reports.story import NOT_RIGHT, able_text, left_out_text, not_right_cell
from q36eval.reports.text import margin_source_text, number, why_text


def criteria_rows(document: Document) -> list[dict[str, str]]:
    """The report's table of criteria, worst first, with the reason and what it rests on."""
    return [
        {
            **row.cells,
            "reason": why_text(row.result),
            "errored": "–" if row.result.counts is None else str(row.result.counts.errored),
            "reference can do": able_text(row.result) or "–",
            "left out": left_out_text(row.result) or "–",
            NOT_RIGHT: not_right_cell(row.result.causes),
            "p pass": number(row.result.p_pass),
            "p fail (Holm)": number(row.result.p_fail_adjusted),
            "source of the margin": margin_source_text(row.result),
        }
        for row in document.criteria
    ]


def event_rows(events: Iterable[RunEvent]) -> list[dict[str, str]]:
    """What happened to the run, oldest first."""
    return [
        {"at (UTC)": f"{event.at:%Y-%m-%d %H:%M:%S}", "what": event.kind.value, "message": event.message}
        for event in events
    ]


def waiver_rows(report: GateReport) -> list[dict[str, str]]:
    """The waivers that made a difference, and to which criteria."""
    excused: dict[Waiver, list[str]] = {}
    for result in report.criteria:
        for waiver in result.waived_by:
            excused.setdefault(waiver, []).append(result.id)
    return [
        {
            "excuses": waiver.scope,
            "set aside": ", ".join(ids),
            "owner": waiver.owner,
            "reason": waiver.reason,
            "expires": str(waiver.expires),
        }
        for waiver, ids in excused.items()
    ]


def signature_rows(signatures: Iterable[SignOff], report: GateReport) -> list[dict[str, str]]:
    """All signatures under the run, and whether each is of the current report."""
    return [
        {
            "owner": one.owner,
            "at (UTC)": f"{one.at:%Y-%m-%d %H:%M}",
            "reason": one.reason,
            "counts": "yes" if one in report.signed_by else "of a report that did not need one, or was replaced since",
        }
        for one in signatures
    ]


def decision_rows(decisions: Iterable[Decision]) -> list[dict[str, str]]:
    """The verdicts that later decisions replaced, oldest first."""
    return [
        {
            "replaced (UTC)": f"{one.replaced:%Y-%m-%d %H:%M}",
            "verdict": one.report.headline,
            "decided by": ", ".join(one.report.decisive) or "–",
            "waived": ", ".join(one.report.waived) or "–",
        }
        for one in decisions
    ]


def measurement_rows(measurements: Iterable[Measurement]) -> list[dict[str, str]]:
    """Everything that was measured, judged or not, in plain text."""
    return [
        {
            "measurement": measurement.key,
            "what it is": metric_of(measurement.probe, measurement.metric).titled(measurement.slice),
            "branch": number(measurement.value),
            "reference": number(measurement.reference_value),
            "effect": number(measurement.effect),
            "interval": f"[{number(measurement.effect_interval.lower)}, {number(measurement.effect_interval.upper)}]",
            "level": f"{measurement.effect_interval.level:.1%}",
            "unit": measurement.unit,
            "better": "lower" if measurement.direction.value.startswith("lower") else "higher",
            "scored": str(measurement.counts.scored),
            "errored": str(measurement.counts.errored),
            "note": measurement.note,
        }
        for measurement in measurements
    ]


def summary(run: RunRecord) -> str:
    """The run in one line of plain text."""
    exit_code = "" if run.report is None else f", exit code {run.report.exit_code}"
    policy = "" if run.report is None else f", policy {run.report.policy}"
    return f"{run.branch} of family {run.family}: {look_of(run.verdict).word}{policy}{exit_code}"
