"""What the run page shows: criteria as table rows and as shares of their margins, identities, provenance. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from q36eval.app.dashboard.verdict_style import criterion_label, look_of
from q36eval.app.figures.canary_lanes import LANES, CanaryLanes
from q36eval.canaries.outcomes import question_name
from q36eval.files import canonical_json
from q36eval.gate.noise import has_floor
from q36eval.gate.report import CERTAIN, CriterionResult, CriterionVerdict, GateReport, LaneResult, SignOff, Waiver
from q36eval.history import Decision, RunEvent, RunRecord
from q36eval.metrics import ALL, metric_of
from q36eval.records import DeploymentIdentity, ItemOutcome, Measurement
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

    `lower` and `upper` are None where that bound is not finite, `floor` where no noise was measured.
    """

    id: str
    title: str
    verdict: CriterionVerdict
    label: str
    share: float
    lower: float | None
    upper: float | None
    detail: str
    floor: float | None = None


@dataclass(frozen=True)
class Deciding:
    """A criterion that the verdict hangs on; `words` say its figure, its margin, and how far it is from turning."""

    result: CriterionResult
    label: str
    words: str


def margin_bars(criteria: Sequence[CriterionResult]) -> list[MarginBar]:
    """Criteria that can be drawn, worst first: a finite loss against a margin that allows some (a count of none has no
    scale)."""
    bars = []
    for result in story.worst_first(criteria):
        if result.loss is None or result.limit is None or not math.isfinite(result.loss) or not result.limit > 0:
            continue
        interval = result.loss_interval
        bars.append(
            MarginBar(
                id=result.id,
                title=result.heading if result.tier == "blocking" else f"{result.heading}, advisory",
                verdict=result.verdict,
                label=criterion_label(result),
                share=result.loss / result.limit,
                lower=None if interval is None else _share(interval.lower, result.limit),
                upper=None if interval is None else _share(interval.upper, result.limit),
                detail=f"{figure_text(result)} {interval_text(result.margin, interval)}, "
                f"margin {margin_text(result.margin, result.unit)}{_floor_detail(result)}",
                floor=None if result.noise_floor is None else _share(result.noise_floor.loss, result.limit),
            )
        )
    return bars


def _floor_detail(result: CriterionResult) -> str:
    return f", noise floor {floor_text(result)}" if has_floor(result.probe, result.metric) else ""


def not_drawn(criteria: Sequence[CriterionResult]) -> list[str]:
    """Ids of the criteria that `margin_bars` leaves to the table."""
    return [result.id for result in criteria if not margin_bars([result])]


def counted_apart(report: GateReport) -> list[tuple[str, int]]:
    """What the chart leaves to the table, in words, and how many of it; what was not evaluated or not measured is told
    elsewhere."""
    undrawn = set(not_drawn(report.criteria))
    left = [r for r in report.criteria if r.id in undrawn and r.verdict is not CriterionVerdict.NOT_MEASURED]
    counts = [result for result in left if result.margin.kind == story.COUNTED]
    over = sum(result.verdict is not CriterionVerdict.PASS for result in counts)
    said = [
        ("counts of faults exceed what the policy allows.", over),
        ("counts of faults are within what the policy allows, and stand in the table.", len(counts) - over),
        ("criteria have no finite figure to draw, and stand in the table.", len(left) - len(counts)),
    ]
    return [(words, count) for words, count in said if count]


def _share(bound: float, limit: float) -> float | None:
    return bound / limit if math.isfinite(bound) else None


def criteria_rows(report: GateReport) -> list[dict[str, str]]:
    """One row of plain text per criterion, worst first; what was left out since the verdict was certain, at the end."""
    left_out = story.not_evaluated(report)
    ordered = sorted(story.worst_first(report.criteria), key=lambda result: result.id in left_out)
    return [_criterion_row(result, left_out) for result in ordered]


def _criterion_row(result: CriterionResult, left_out: Collection[str]) -> dict[str, str]:
    counts = result.counts
    return {
        "criterion": result.heading,
        "id": result.id,
        "verdict": criterion_label(result, left_out),
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
    """One sentence for every reason why something was not measured, with the criteria that it kept from judgement;
    without what was left out since the verdict was certain."""
    left_out = story.not_evaluated(report)
    lines = []
    for gap in not_measured(report):
        missing = [result.name for result in gap.criteria if result.id not in left_out]
        certain = gap.failure is not None and CERTAIN in gap.reason
        told = gap.stage is not None or gap.judged or gap.told or certain
        if not told and (missing or not gap.criteria):
            lines.append(": ".join(filter(None, (", ".join(missing), gap.reason))))
    return lines


def missing_count(report: GateReport) -> int:
    """How many criteria were really not measured."""
    unmeasured = {result.id for result in report.criteria if result.verdict is CriterionVerdict.NOT_MEASURED}
    return len(unmeasured - story.not_evaluated(report))


def required_words(lanes: CanaryLanes, flips: Iterable[ItemOutcome]) -> str | None:
    """How many required prompts the gate counts as flipped, by lane, and how many other fixed prompts flipped; None
    where none of either did."""
    counted = lanes.flipped.get(ALL, frozenset())
    lost = [item for item in flips if item.must_pass and item.flip == "regression"]
    others = sum(question_name(item) not in counted for item in lost)
    by_lane = [f"{len(lanes.flipped[lane])} in lane {lane}" for lane in LANES if lane in lanes.flipped]
    said = []
    if counted:
        prompts = "required prompt" if len(counted) == 1 else "required prompts"
        said.append(f"{len(counted)} {prompts} flipped, confirmed in every batch ({', '.join(by_lane)}).")
    if others and lanes.flipped:
        prompts = "fixed prompt was" if others == 1 else "fixed prompts were"
        said.append(f"{others} other {prompts} answered wrong by the branch alone, and judged as a rate.")
    return " ".join(said) or None


def decided_by(report: GateReport, lane: LaneResult | None = None) -> list[Deciding]:
    """What the verdict hangs on, worst first: what kept it from PASS, else what has the smallest headroom."""
    return [
        Deciding(result, criterion_label(result), _decision_words(result))
        for result in story.worst_first(story.decided_by(report, lane))
    ]


def _decision_words(result: CriterionResult) -> str:
    counted = result.margin.kind == story.COUNTED and result.verdict is not CriterionVerdict.NOT_MEASURED
    return (story.distance_text(result) if counted else None) or story.decision_line(result)


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


def signature_rows(signatures: Iterable[SignOff], report: GateReport) -> list[dict[str, str]]:
    """All signatures under the run, and whether each is of the report as it stands."""
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
