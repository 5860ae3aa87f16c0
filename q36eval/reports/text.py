"""Figures and criteria, made readable."""

import math

from q36eval.gate.margins import held_words
from q36eval.gate.noise import floor_unit, has_floor
from q36eval.gate.policy import Margin
from q36eval.gate.report import CriterionResult, GateReport
from q36eval.schemes import mixture_name
from q36eval.stats import unseen_share

COLUMNS = ("criterion", "lanes", "branch", "reference", "judged", "interval", "floor", "margin", "scored", "verdict")
"""The columns of the table of criteria, in every format."""

NUMERIC = ("branch", "reference", "judged", "interval", "floor", "scored")


def number(value: float | None) -> str:
    """Four significant digits; a dash for a missing value."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %" if math.isfinite(value) else number(value)


PERCENTAGES = ("min_recovery", "min_retention", "max_share")
"""Margins displayed in per cent."""


def in_unit(margin: Margin, value: float | None, unit: str | None) -> str:
    """A figure in the margin's own terms: per cent for a share, points for a difference of shares."""
    if value is None or margin.kind in PERCENTAGES:
        return "–" if value is None else _percent(value)
    if unit == "fraction" and margin.kind != "max_count":
        return f"{number(100 * value)} points" if margin.kind == "max_increase" else _percent(value)
    return number(value)


def margin_text(margin: Margin, unit: str | None) -> str:
    """The margin as a rule: `recovery ≥ 95 %`, `≤ 0.014 nats/token`, `retention ≥ 99 % against the blessed run`."""
    limit = in_unit(margin, margin.value, unit)
    rule = {
        "max_value": f"≤ {limit} {'' if unit in (None, 'fraction') else unit}".rstrip(),
        "max_increase": f"worse by ≤ {limit}",
        "min_recovery": f"recovery ≥ {limit}",
        "min_retention": f"retention ≥ {limit}",
        "max_count": f"count ≤ {limit}",
        "max_share": f"≤ {limit} of clusters beyond {_threshold(margin, unit)}",
    }[margin.kind]
    return f"{rule} against the blessed run" if margin.against == "blessed" else rule


def _threshold(margin: Margin, unit: str | None) -> str:
    """The threshold for a cluster: in its unit once known, else as a multiple of another criterion's margin."""
    if margin.beyond is None:
        return f"{number(margin.beyond_margins)} × the margin of {margin.of}"
    # a perplexity is compared by its logarithm
    return f"{number(margin.beyond)} {unit if unit == 'nats/token' else 'nats'}"


def held_text(result: CriterionResult) -> str | None:
    """The margin in use for the branch's scheme, with the ceiling and their sources; None if it does not depend."""
    held = result.held
    if held is None:
        return None
    parts = [held_words(held) or f"the accepted figure for {mixture_name(held.schemes or ())} holds"]
    for words, value, source in (
        *(() if held.accepted is None else ((held.accepted.scheme, held.accepted.value, held.accepted.source),)),
        ("ceiling", held.ceiling, held.ceiling_source),
    ):
        margin = result.margin.model_copy(update={"value": value})
        parts.append(f"{words} {margin_text(margin, result.unit)} ({source})")
    return "; ".join(parts)


def margin_source_text(result: CriterionResult) -> str:
    """The source of the margin in use, with the ceiling if it depends on the scheme."""
    return held_text(result) or result.margin.source


def held_lines(report: GateReport) -> list[str]:
    """One sentence per margin that depends on the scheme: the one in use, and the reason."""
    return [f"margin of {result.name}: {text}" for result in report.criteria if (text := held_text(result)) is not None]


def interval_text(result: CriterionResult) -> str:
    """The interval in the margin's own terms."""
    interval = result.figure_interval
    if interval is None:
        return "–"
    lower, upper = (in_unit(result.margin, bound, result.unit) for bound in (interval.lower, interval.upper))
    points = " points" * upper.endswith(" points")
    return f"[{lower.removesuffix(points)}, {upper.removesuffix(points)}]{points}"


def figure_text(result: CriterionResult) -> str:
    """The figure compared with the margin, in its own terms."""
    return in_unit(result.margin, result.figure, result.unit)


def value_text(value: float | None, unit: str | None) -> str:
    """A measured value: a share in per cent."""
    return _percent(value) if unit == "fraction" and value is not None else number(value)


def floor_text(result: CriterionResult) -> str:
    """The noise floor next to the figure: in nats/token, or as a share of a perplexity."""
    if not has_floor(result.probe, result.metric):
        return "–"
    if result.noise_floor is None:
        return "not measured"
    loss = result.noise_floor.loss
    return _percent(-math.expm1(-loss)) if result.margin.kind == "min_retention" else number(loss)


def floor_lines(report: GateReport) -> list[str]:
    """One sentence per noise floor: its criterion, size, and perturbation."""
    lines = []
    for result in report.criteria:
        if has_floor(result.probe, result.metric):
            unit = "of the perplexity" if result.margin.kind == "min_retention" else floor_unit(result.metric)
            source = "" if result.noise_floor is None else f" {unit} ({result.noise_floor.source})"
            lines.append(f"noise floor of {result.name}: {floor_text(result)}{source}")
    return lines


def counts_text(result: CriterionResult) -> str:
    """The number scored, and the total if some errored or were unreadable."""
    counts = result.counts
    if counts is None:
        return "–"
    return str(counts.scored) if counts.scored == counts.total else f"{counts.scored} of {counts.total}"


def verdict_text(result: CriterionResult) -> str:
    """The verdict as people read it, and whether it was waived."""
    words = str(result.verdict).replace("_", " ")
    return f"{words} (waived)" if result.waived else words


def name_text(result: CriterionResult) -> str:
    """The criterion's title with its id, and a star if it is advisory."""
    return result.name if result.tier == "blocking" else f"{result.name}*"


ADVISORY_NOTE = "* advisory: shown, never blocking"


def waiver_text(result: CriterionResult) -> str | None:
    """Who excused it, until when and why."""
    waivers = [f"waived by {waiver.owner} until {waiver.expires}: {waiver.reason}" for waiver in result.waived_by]
    return "; ".join(waivers) or None


def why_text(result: CriterionResult) -> str:
    """The reason, with the waiver if any."""
    waiver = waiver_text(result)
    return result.reason if waiver is None else f"{result.reason}; {waiver}"


def unseen_text(clusters: int, confidence: float) -> str:
    """The limit of this many sources: damage in a small share may not have been drawn at all."""
    unseen = f"what fewer than {100 * unseen_share(clusters, confidence):.2f} % of them hold"
    return f"A mean over {clusters:,} sources, taken as independent, may miss {unseen}"


def duration(seconds: float) -> str:
    """Rounded to an estimate's precision: `under 5 s`, `25 s`, `4 min`, `2 h 10 min`."""
    if seconds < 5:
        return "under 5 s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
