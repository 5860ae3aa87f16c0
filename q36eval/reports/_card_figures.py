"""The figures of a run that may be on a model card, and their descriptions. Only measured figures; pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.gate.margins import held_words
from q36eval.gate.noise import has_floor
from q36eval.gate.report import UNMEASURED, CriterionResult, GateReport
from q36eval.measurement_facts import MeasuredOn, recorded
from q36eval.metrics import Metric, metric_of, metric_of_key
from q36eval.records import Counts, Interval, Measurement, ProbeName
from q36eval.reports.evals_figures import EvalsFigures, percent, percent_interval, why_none
from q36eval.reports.text import figure_text, floor_text, interval_text, margin_text, number, verdict_text
from q36eval.stats import why_missing

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


@dataclass(frozen=True)
class CardFigure:
    """One figure of the branch, paired with the reference's.

    `interval` is of `compared`, the comparison in words (a recovery, a retention, a change, or the figure itself) with
    its `compared_value`, and `bounds` the same interval in numbers, None without two finite bounds. `on` is the
    evaluated data, None if the run does not record it; `where` describes it, and `part` names the part. `margin` and
    `result` are empty if no criterion judges it.
    """

    key: str
    metric: str
    unit: str
    on: MeasuredOn | None
    where: str
    part: str
    value: float
    reference: float | None
    compared: str
    compared_value: float
    comparison: str
    interval: str
    bounds: Interval | None
    counts: Counts
    planned: int | None = None
    margin: str = ""
    result: str = ""
    floor: str | None = None

    @property
    def words(self) -> str:
        """The metric's display name, with its unit if that is not its own."""
        name = self.described.label
        return f"{name}, {self.unit}" if "/" in self.unit else name

    @property
    def described(self) -> Metric:
        """What the metric is."""
        return metric_of_key(self.key)[0]

    def shown(self, value: float | None) -> str:
        """A value of this figure, a share in percent."""
        return percent(value) if self.described.is_share else number(value)

    @property
    def items(self) -> str:
        """The number of scored items, and of all if some were not evaluated or gave no answer."""
        scored = f"{self.counts.scored:,}"
        if self.planned is not None and self.planned > self.counts.total:
            scored += f" of {self.planned:,}"
        counts = self.counts
        apart = [f"{n} {what}" for n, what in ((counts.errored, "errored"), (counts.unreadable, "unreadable")) if n]
        return f"{scored} ({', '.join(apart)})" if apart else scored


def card_figures(report: GateReport, run: "RunRecord", measurements: Sequence[Measurement]) -> list[CardFigure]:
    """The figures that criteria judge, in the policy's order, then the eval groups and perplexities none judges."""
    broken = {failure.probe for failure in report.failures if failure.of_the_engine}
    sound = [m for m in measurements if m.probe not in broken and _is_sound(m)]
    evals = EvalsFigures(sound)
    planned = {f"accuracy[{group.name}]": group.planned for group in evals.groups()}
    judged = [
        _judged(result, run, planned)
        for result in report.criteria
        if result.margin.kind != "max_count" and _told(result)
    ]
    seen = {figure.key for figure in judged}
    return judged + [figure for figure in _unjudged(evals, run, planned) if figure.key not in seen]


def card_checks(report: GateReport, run: "RunRecord") -> list[tuple[str, ...]]:
    """Counts that the margin limits: faults of the files, flips of required prompts. Each with its count, the number of
    items, the margin and the result."""
    return [
        (
            called(result, run),
            number(result.value),
            "" if result.counts is None else f"{result.counts.scored:,}",
            margin_text(result.margin, result.unit),
            _result_words(result),
        )
        for result in report.criteria
        if result.margin.kind == "max_count" and _told(result)
    ]


def called(result: CriterionResult, run: "RunRecord") -> str:
    """The description of a criterion's figure. Its id may be a benchmark's name although its items are not."""
    name = metric_of(result.probe, result.metric).label
    if result.probe is ProbeName.WEIGHTS:
        return name if result.slice == "all" else f"{name} ({result.slice})"
    return f"{name} ({_place(run, result.probe, result.slice)[1]})"


def _told(result: CriterionResult) -> bool:
    """Whether its figures may be published: it was judged, and every displayed figure is a number."""
    figures = (result.value, result.figure)
    return result.verdict not in UNMEASURED and all(figure is not None and not math.isnan(figure) for figure in figures)


def _is_sound(m: Measurement) -> bool:
    is_number = not math.isnan(m.value) and not math.isnan(m.effect)
    return m.counts.scored > 0 and is_number and why_missing(m.counts, m.estimator) is None


def _judged(result: CriterionResult, run: "RunRecord", planned: Mapping[str, int | None]) -> CardFigure:
    assert result.value is not None, "told criteria have a value"
    assert result.counts is not None, "told criteria have counts"
    on, where, part = _place(run, result.probe, result.slice)
    comparison = {"min_recovery": "recovery", "min_retention": "retention", "max_increase": "change for the worse"}
    comparison |= {"max_share": "share of clusters beyond the threshold"}
    return CardFigure(
        key=result.key,
        metric=result.metric,
        unit=result.unit or "",
        on=on,
        where=where,
        part=part,
        value=result.value,
        reference=result.reference_value,
        compared=figure_text(result),
        compared_value=math.nan if result.figure is None else result.figure,
        comparison=comparison.get(result.margin.kind, ""),
        interval=interval_text(result),
        bounds=_finite(result.figure_interval),
        counts=result.counts,
        planned=planned.get(f"{result.metric}[{result.slice}]"),
        margin=_asked_for(result),
        result=_result_words(result),
        floor=floor_text(result) if has_floor(result.probe, result.metric) else None,
    )


def _asked_for(result: CriterionResult) -> str:
    """The margin in use, and why it is not the figure of the branch's scheme."""
    words = None if result.held is None else held_words(result.held)
    rule = margin_text(result.margin, result.unit)
    return rule if words is None else f"{rule} ({words})"


def _unjudged(evals: EvalsFigures, run: "RunRecord", planned: Mapping[str, int | None]) -> Iterator[CardFigure]:
    for group in evals.groups():
        m, recovery = group.accuracy, group.recovery
        if recovery is not None and not math.isnan(recovery.value):
            text, interval = percent(recovery.value), recovery.effect_interval
            compared = (text, recovery.value, "recovery")
            yield _of_measurement(m, run, compared, percent_interval(interval), interval, planned)
        else:
            interval = m.effect_interval
            text = f"{100 * m.effect:+.2f} points"
            bounds = why_none(interval) or f"[{100 * interval.lower:+.2f}, {100 * interval.upper:+.2f}]"
            yield _of_measurement(m, run, (text, m.effect, "change"), bounds, interval, planned)
    for perplexity in evals.perplexities():
        for ratio in (perplexity.token, perplexity.word):
            if ratio is not None:
                interval = ratio.effect_interval
                bounds = why_none(interval) or f"[{interval.lower:.4f}, {interval.upper:.4f}]"
                compared = (f"× {ratio.effect:.4f}", ratio.effect, "ratio")
                yield _of_measurement(ratio, run, compared, bounds, interval, {})


def _of_measurement(
    m: Measurement,
    run: "RunRecord",
    compared: tuple[str, float, str],
    bounds_text: str,
    interval: Interval,
    planned: Mapping[str, int | None],
) -> CardFigure:
    on, where, part = _place(run, m.probe, m.slice)
    return CardFigure(
        key=m.key,
        metric=m.metric,
        unit=m.unit,
        on=on,
        where=where,
        part=part,
        value=m.value,
        reference=m.reference_value,
        compared=compared[0],
        compared_value=compared[1],
        comparison=compared[2],
        interval=bounds_text,
        bounds=_finite(interval),
        counts=m.counts,
        planned=planned.get(f"{m.metric}[{m.slice}]"),
    )


def _place(run: "RunRecord", probe: ProbeName, slice_name: str) -> tuple[MeasuredOn | None, str, str]:
    """The evaluated data, its description, and the part.

    A group without recorded facts is not called by its name, which may be a benchmark's although the items are not.
    """
    on, part = recorded(run.provenance, probe, slice_name)
    if on is None:
        unknown = {ProbeName.KL: "held-out texts", ProbeName.CANARIES: "canaries"}.get(probe)
        words = (
            "items that this run keeps no description of"
            if unknown is None
            else unknown + ("" if slice_name == "all" else f", {slice_name}")
        )
        return None, words, ""
    shots = "" if on.num_fewshot is None else f", {on.num_fewshot}-shot"
    return on, f"{on.title}{shots}" + (f": {part}" if part else ""), part or ""


def _result_words(result: CriterionResult) -> str:
    words = verdict_text(result)
    return words if result.tier == "blocking" else f"{words} (advisory)"


def _finite(interval: Interval | None) -> Interval | None:
    if interval is None or not (math.isfinite(interval.lower) and math.isfinite(interval.upper)):
        return None
    return interval
