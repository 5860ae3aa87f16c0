"""Tables of the run page: criteria, measurements, and events of the run. Pure."""

from collections.abc import Iterable
from datetime import datetime

from q36eval.app.dashboard.models.overview import age_text
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.gate.headroom import share_of_limit
from q36eval.gate.report import CriterionVerdict, GateReport, SignOff, Waiver
from q36eval.history import Decision, RunEvent, RunRecord
from q36eval.metrics import metric_of
from q36eval.records import Measurement
from q36eval.reports.document import Document
from q36eval.reports.plots import MARK, Row
from q36eval.reports.plots import criteria_rows as interval_rows
from q36eval.reports.story import NOT_RIGHT, able_text, left_out_text, not_right_cell
from q36eval.reports.text import duration, margin_source_text, number, why_text


def criteria_rows(document: Document) -> list[dict[str, str]]:
    """Every criterion, worst first, with its figures for comparison."""
    return [
        {
            "criterion": row.cells["criterion"],
            "lane": row.cells["lanes"],
            "branch": row.cells["branch"],
            "reference": row.cells["reference"],
            "judged [interval]": f"{row.cells['judged']} {row.cells['interval']}".removesuffix(" –"),
            "margin": row.cells["margin"],
            "verdict": f"{MARK[row.result.verdict]} {row.cells['verdict']}",
        }
        for row in document.criteria
    ]


def margin_rows(document: Document) -> tuple[list[dict[str, str]], list[Row]]:
    """The criteria with an interval, worst first, with value, margin and headroom, and each as it is drawn.

    The headroom is how far the bound that decided lies from the margin, as a share of it: below zero without a PASS.
    """
    by_id, points, rows = {row.result.id: row for row in document.criteria}, interval_rows(document.report), []
    for point in points:
        result, share = by_id[point.below].result, share_of_limit(by_id[point.below].result)
        sign = 1 if result.verdict is CriterionVerdict.PASS else -1
        cells = by_id[point.below].cells
        headroom = "–" if share is None else f"{sign * share:+.0%}"
        verdict = f"{MARK[result.verdict]} {point.name}"
        rows.append({"criterion": verdict, "value": cells["judged"], "margin": cells["margin"], "headroom": headroom})
    return rows, points


def evidence_rows(document: Document) -> list[dict[str, str]]:
    """For every criterion the reason for its verdict and its evidence."""
    return [
        {
            "criterion": row.cells["criterion"],
            "reason": why_text(row.result),
            "noise floor": row.cells["floor"],
            "scored": row.cells["scored"],
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


def summary(run: RunRecord, now: datetime) -> str:
    """Below the heading: age, duration, what it is and where the lanes differ, in plain text."""
    said = [f"{run.started:%Y-%m-%d %H:%M} UTC, {age_text(run.started, now)}"]
    if run.finished is not None:
        said.append(f"took {duration((run.finished - run.started).total_seconds())}")
    said += [f"family {run.family}", f"run {run.id}"]
    if run.report is not None:
        lanes = {(lane.verdict, lane.waived): lane for lane in run.report.lanes}
        told = run.report.lanes if len(lanes) > 1 else ()
        said += [f"{lane.lane} {look_of(lane.verdict).label}{' with waivers' if lane.waived else ''}" for lane in told]
        said.append(f"exit code {run.report.exit_code}")
    return " · ".join(said)
