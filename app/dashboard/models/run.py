"""What the run page shows: criteria as table rows and as shares of their margins, identities, provenance. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from q36eval.app.dashboard.look import criterion_label, look_of
from q36eval.files import canonical_json
from q36eval.gate.noise import has_floor
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, LaneResult, SignOff, Waiver
from q36eval.history import Decision, Origin, RunEvent, RunRecord
from q36eval.metrics import metric_of
from q36eval.records import DeploymentIdentity, Measurement
from q36eval.reports import story
from q36eval.reports.document import not_measured
from q36eval.reports.story import NOT_RIGHT, able_text, left_out_text, not_right_cell
from q36eval.reports.text import (
    figure_text,
    floor_text,
    interval_text,
    margin_source_text,
    margin_text,
    number,
    why_text,
)


@dataclass(frozen=True)
class MarginBar:
    """A criterion's loss as a share of the most that its margin allows: at most 1 is inside, below 0 is a gain.

    `lower` and `upper` are None where that bound is not finite.
    """

    id: str
    title: str
    verdict: CriterionVerdict
    label: str
    share: float
    lower: float | None
    upper: float | None
    detail: str


@dataclass(frozen=True)
class Deciding:
    """A criterion that the verdict hangs on; `words` say its figure, its margin, and how far it is from turning."""

    result: CriterionResult
    label: str
    words: str


def margin_bars(criteria: Sequence[CriterionResult]) -> list[MarginBar]:
    """Criteria that can be drawn: a finite loss against a margin that allows some (a count of none has no scale)."""
    bars = []
    for result in criteria:
        if result.loss is None or result.limit is None or not math.isfinite(result.loss) or not result.limit > 0:
            continue
        interval = result.loss_interval
        bars.append(
            MarginBar(
                id=result.id,
                title=result.name if result.tier == "blocking" else f"{result.name}, advisory",
                verdict=result.verdict,
                label=criterion_label(result),
                share=result.loss / result.limit,
                lower=None if interval is None else _share(interval.lower, result.limit),
                upper=None if interval is None else _share(interval.upper, result.limit),
                detail=f"{figure_text(result)} {interval_text(result.margin, interval)}, "
                f"margin {margin_text(result.margin, result.unit)}{_floor_detail(result)}",
            )
        )
    return bars


def _floor_detail(result: CriterionResult) -> str:
    return f", noise floor {floor_text(result)}" if has_floor(result.probe, result.metric) else ""


def not_drawn(criteria: Sequence[CriterionResult]) -> list[str]:
    """Ids of the criteria that `margin_bars` leaves to the table."""
    return [result.id for result in criteria if not margin_bars([result])]


def _share(bound: float, limit: float) -> float | None:
    return bound / limit if math.isfinite(bound) else None


def criteria_rows(criteria: Iterable[CriterionResult]) -> list[dict[str, str]]:
    """One row of plain text per criterion, what is not PASS first."""
    order = [CriterionVerdict.FAIL, CriterionVerdict.NOT_MEASURED, CriterionVerdict.INCONCLUSIVE, CriterionVerdict.PASS]
    return [_criterion_row(result) for result in sorted(criteria, key=lambda r: (order.index(r.verdict), r.id))]


def _criterion_row(result: CriterionResult) -> dict[str, str]:
    counts = result.counts
    return {
        "criterion": result.heading,
        "id": result.id,
        "verdict": criterion_label(result),
        "judged": figure_text(result),
        "interval": interval_text(result.margin, result.figure_interval),
        "noise floor": floor_text(result),
        "margin": margin_text(result.margin, result.unit),
        "scored": "–" if counts is None else str(counts.scored),
        "errored": "–" if counts is None else str(counts.errored),
        "reference can do": able_text(result) or "–",
        "left out": left_out_text(result) or "–",
        NOT_RIGHT: not_right_cell(result.causes),
        "tier": result.tier,
        "reason": why_text(result),
        "branch": number(result.value),
        "reference": number(result.reference_value),
        "unit": result.unit or "–",
        "lanes": ", ".join(result.lanes),
        "p pass": number(result.p_pass),
        "p fail (Holm)": number(result.p_fail_adjusted),
        "source of the margin": margin_source_text(result),
    }


def gap_lines(report: GateReport) -> list[str]:
    """One sentence for every reason why something was not measured, with the criteria that it kept from judgement."""
    gaps = [gap for gap in not_measured(report) if gap.stage is None and not gap.judged and not gap.told]
    return [": ".join(filter(None, (", ".join(result.name for result in gap.criteria), gap.reason))) for gap in gaps]


def decided_by(report: GateReport, lane: LaneResult | None = None) -> list[Deciding]:
    """What the verdict hangs on: what kept it from PASS, else what has the smallest headroom."""
    return [
        Deciding(result, criterion_label(result), f"{result.name}: {story.decision_line(result)}")
        for result in story.decided_by(report, lane)
    ]


def stage_rows(report: GateReport, timings: Mapping[str, float]) -> list[dict[str, str]]:
    """The stages in the order of evaluation, how much of each was evaluated, and its seconds."""
    listed = {stage.name: stage for stage in report.stages}
    return [
        {
            "stage": name,
            "evaluated": "–" if name not in listed else story.stage_text(listed[name], report),
            "seconds": f"{timings[name]:.1f}" if name in timings else "–",
        }
        for name in dict.fromkeys((*timings, *listed))
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


def signature_rows(signatures: Iterable[tuple[SignOff, Origin]], report: GateReport) -> list[dict[str, str]]:
    """All signatures under the run, and whether each is of the report as it stands."""
    return [
        {
            "owner": one.owner,
            "at (UTC)": f"{one.at:%Y-%m-%d %H:%M}",
            "reason": one.reason,
            "counts": "yes"
            if one in report.signed_by
            else origin.words or "of a report that did not need one, or was replaced since",
        }
        for one, origin in signatures
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


def identity_rows(run: RunRecord) -> list[dict[str, str]]:
    """Branch and reference field by field, and whether they agree."""
    rows = []
    for name in DeploymentIdentity.model_fields:
        branch, reference = _field(run.identity, name), _field(run.reference_identity, name)
        agree = "–" if "unknown" in (branch, reference) else ("same" if branch == reference else "differs")
        rows.append({"field": name.replace("_", " "), "agree": agree, "branch": branch, "reference": reference})
    return rows


def _field(identity: DeploymentIdentity | None, name: str) -> str:
    if identity is None:
        return "unknown"
    value = getattr(identity, name)
    return canonical_json(value) if isinstance(value, dict) else str(value)


def provenance_rows(run: RunRecord) -> list[dict[str, str]]:
    """When, with which code, packages and questions."""
    rows = [
        {"what": "started (UTC)", "value": f"{run.started:%Y-%m-%d %H:%M:%S}"},
        {"what": "finished (UTC)", "value": "–" if run.finished is None else f"{run.finished:%Y-%m-%d %H:%M:%S}"},
        {"what": "state", "value": str(run.state)},
    ]
    for name, value in sorted(run.provenance.items()):
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        rows += [{"what": f"{name} {key}".strip(), "value": _unknown(inner)} for key, inner in pairs]
    return rows + [{"what": f"suite of {name}", "value": digest} for name, digest in sorted(run.suites.items())]


def _unknown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_unknown, value))
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_unknown(inner)}" for name, inner in value.items()) or "–"
    return "unknown" if value is None else str(value)


def summary(run: RunRecord) -> str:
    """The run in one line of plain text."""
    exit_code = "" if run.report is None else f", exit code {run.report.exit_code}"
    policy = "" if run.report is None else f", policy {run.report.policy}"
    return f"{run.branch} of family {run.family}: {look_of(run.verdict).word}{policy}{exit_code}"
