"""A run's eval measurements, group by group, for every report and page. Pure; never imports an engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from q36eval.gate.report import GateReport
from q36eval.paired_figures import EffectiveLength, effective_length
from q36eval.records import Interval, Measurement, ProbeName, Record
from q36eval.reports.story import NOT_RIGHT, not_right_cell
from q36eval.reports.text import number

SUITE = "suite"
DEFAULT_RECOVERY = 0.97
"""The cards' RULER recovery: the minimum for a length to count, unless a person sets another."""


@dataclass(frozen=True)
class GroupFigures:
    """One group of tasks, one of its slices, or the suite.

    `answers_changed`, `planned`, `lost` and `gained` are None where they were not measured.
    """

    name: str
    accuracy: Measurement
    recovery: Measurement | None
    lost: int | None = None
    gained: int | None = None
    answers_changed: Measurement | None = None
    planned: int | None = None


@dataclass(frozen=True)
class PerplexityFigures:
    """One slice of the documents; each with its ratio branch / reference."""

    name: str
    token: Measurement
    word: Measurement | None


@dataclass(frozen=True)
class LengthFigures:
    """One length in tokens."""

    length: int
    accuracy: Measurement
    recovery: Measurement


class EvalsFigures:
    """The eval measurements of one run, by metric and slice."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._found = {(m.metric, m.slice): m for m in measurements if m.probe is ProbeName.EVALS}

    @property
    def measured(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._found)

    def groups(self) -> list[GroupFigures]:
        """The groups, then the suite where it holds several."""
        judged = self._slices("accuracy")
        # older runs did not count flips: what is no slice of another is a group
        names = self._slices("items_lost") or [name for name in judged if name.rpartition("/")[0] not in judged]
        return [self._group(name) for name in names if name in judged]

    def slices(self, group: str) -> list[GroupFigures]:
        """The slices of a group: its tasks, its lengths."""
        return [self._group(name) for name in self._slices("accuracy") if name.startswith(f"{group}/")]

    def perplexities(self) -> list[PerplexityFigures]:
        """All documents, then each slice of them."""
        return [
            PerplexityFigures(name, m, self._found.get(("word_perplexity", name)))
            for (metric, name), m in self._found.items()
            if metric == "perplexity"
        ]

    def groups_with_lengths(self) -> list[str]:
        """The groups whose items come at several lengths."""
        return [group.name for group in self.groups() if self.lengths(group.name)]

    def lengths(self, group: str) -> list[LengthFigures]:
        """Each length of such a group, ascending."""
        lengths = []
        for slice_name in self._slices("accuracy"):
            prefix, _, value = slice_name.rpartition("/")
            if prefix == group and value.isdigit():
                accuracy, kept = self._found["accuracy", slice_name], self._found.get(("recovery", slice_name))
                lengths += [] if kept is None else [LengthFigures(int(value), accuracy, kept)]
        return sorted(lengths, key=lambda figures: figures.length)

    def _slices(self, metric: str) -> list[str]:
        return [name for measured, name in self._found if measured == metric]

    def _group(self, name: str) -> GroupFigures:
        return GroupFigures(
            name=name,
            accuracy=self._found["accuracy", name],
            recovery=self._found.get(("recovery", name)),
            lost=self._count("items_lost", name),
            gained=self._count("items_gained", name),
            answers_changed=self._found.get(("answers_changed", name)),
            planned=self._count("items_planned", name),
        )

    def _count(self, metric: str, name: str) -> int | None:
        measurement = self._found.get((metric, name))
        return None if measurement is None else int(measurement.value)


def percent(value: float | None) -> str:
    """A share in percent; a dash without one."""
    return number(value) if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def percent_interval(interval: Interval) -> str:
    """Both bounds in percent, or the reason for none."""
    return why_none(interval) or f"[{percent(interval.lower)}, {percent(interval.upper)}]"


def why_none(interval: Interval) -> str | None:
    """Why neither bound is identified, in brackets; None if one is."""
    kind, _, why = interval.method.partition(": ")
    return f"({why or 'no interval'})" if kind == "none" else None


def recovery_words(m: Measurement | None) -> str:
    """Recovery with its interval."""
    return "–" if m is None else f"{percent(m.value)} {percent_interval(m.effect_interval)}"


def ratio_words(m: Measurement | None) -> str:
    """A perplexity, the reference's, and their ratio with its interval."""
    if m is None:
        return "–"
    interval = m.effect_interval
    bounds = why_none(interval) or f"[{_ratio(interval.lower)}, {_ratio(interval.upper)}]"
    return f"{number(m.value)} (ref {number(m.reference_value)}), × {_ratio(m.effect)} {bounds}"


def _ratio(value: float) -> str:
    """Four decimals, since the distance from 1 matters."""
    return f"{value:.4f}" if math.isfinite(value) else number(value)


def change_words(m: Measurement | None) -> str:
    """The change from the reference with its interval, in the figure's unit."""
    if m is None:
        return "–"
    if not math.isfinite(m.effect):
        return number(m.effect)
    interval = m.effect_interval
    return f"{m.effect:+.3g} " + (why_none(interval) or f"[{interval.lower:+.3g}, {interval.upper:+.3g}]")


def group_cells(group: GroupFigures) -> dict[str, str]:
    """The figures of a group as text, by column."""
    changed, scored, planned = group.answers_changed, group.accuracy.counts.scored, group.planned
    return {
        "group": group.name,
        "score": percent(group.accuracy.value),
        "reference": percent(group.accuracy.reference_value),
        "recovery [95 %]": recovery_words(group.recovery),
        "lost": number(group.lost),
        "gained": number(group.gained),
        "answers changed": percent(None if changed is None else changed.value),
        "items": str(scored) if planned in (None, scored) else f"{scored} of {planned}",
        "errored": str(group.accuracy.counts.errored),
        NOT_RIGHT: not_right_cell(group.accuracy.causes),
    }


def effective_words(length: EffectiveLength) -> str:
    """The effective length as a sentence, by what was seen and by what is shown."""
    rule = f"Effective length (recovery ≥ {percent(length.at_least)} at it and every shorter one)"
    if not length.measured:
        return f"{rule}: not measured."
    shortest = min((*length.measured, *length.not_measured))
    seen, shown = (
        f"below {shortest:,}" if length is None else f"{length:,}"
        for length in (length.by_value, length.by_lower_bound)
    )
    more = " (the longest measured)" if length.is_whole else ""
    gap = (
        f"; not measured at {', '.join(f'{length:,}' for length in length.not_measured)}" if length.not_measured else ""
    )
    return f"{rule}: {seen} tokens{more} by the estimates, {shown} by their lower bounds{gap}."


def recovery_asked(report: GateReport) -> dict[str, float]:
    """By slice the policy's required recovery of accuracy: the minimum for a length to count."""
    return {
        result.slice: result.margin.value
        for result in report.criteria
        if result.probe is ProbeName.EVALS and result.margin.kind == "min_recovery"
    }


def judged_fewer(report: GateReport) -> list[str]:
    """A sentence for every criterion that judges fewer items than the figures by task hold."""
    return [
        f"{result.name} judges {result.counts.scored:,} items, of the families that the reference can do; the figures "
        "by task are of all items."
        for result in report.criteria
        if result.probe is ProbeName.EVALS and result.counts and result.competence and result.competence.left_out
    ]


class EvalGroup(Record):
    """One group of tasks. Shares are in [0, 1], recovery is branch / reference; None is not measured."""

    score: float | None
    reference_score: float | None
    items_lost: int | None
    items_gained: int | None
    answers_changed: float | None
    recovery: float | None
    recovery_interval: tuple[float, float] | None
    scored: int
    errored: int
    planned: int | None


class EvalsSection(Record):
    """What accuracy alone hides of the evals, by group of tasks."""

    groups: dict[str, EvalGroup]
    effective_length: dict[str, EffectiveLength]


def evals_section(figures: EvalsFigures, at_least: Mapping[str, float]) -> EvalsSection:
    """Recovery, flips and counts by group, and effective lengths.

    `at_least` is what a length must recover to count, by group; `DEFAULT_RECOVERY` elsewhere.
    """
    return EvalsSection(
        groups={group.name: _eval_group(group) for group in figures.groups()},
        effective_length=effective_lengths(figures, at_least),
    )


def _eval_group(group: GroupFigures) -> EvalGroup:
    changed, recovery = group.answers_changed, group.recovery
    bounds = None if recovery is None else (recovery.effect_interval.lower, recovery.effect_interval.upper)
    return EvalGroup(
        score=group.accuracy.value,
        reference_score=group.accuracy.reference_value,
        items_lost=group.lost,
        items_gained=group.gained,
        answers_changed=None if changed is None else changed.value,
        recovery=None if recovery is None else recovery.value,
        recovery_interval=bounds,
        scored=group.accuracy.counts.scored,
        errored=group.accuracy.counts.errored,
        planned=group.planned,
    )


def effective_lengths(figures: EvalsFigures, at_least: Mapping[str, float]) -> dict[str, EffectiveLength]:
    """The longest length up to which enough is recovered, by group with lengths; `at_least` as for `evals_section`."""
    found = {}
    for group in figures.groups_with_lengths():
        lengths = {
            each.length: (each.recovery.value, each.recovery.effect_interval.lower) for each in figures.lengths(group)
        }
        found[group] = effective_length(lengths, at_least.get(group, DEFAULT_RECOVERY))
    return found
