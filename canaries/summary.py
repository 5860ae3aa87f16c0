"""The figures of the canary probe: one plan, declared before any evaluation and measured once outcomes are known.

Every figure compares branch and reference on the same questions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from q36eval.canaries.checks.discount import discount
from q36eval.canaries.checks.tool_calls import tool_call, tool_calls
from q36eval.canaries.checks.value import price_line
from q36eval.canaries.must_pass import flips, unstable, why_not_absolute
from q36eval.canaries.outcomes import PlannedItem, competence_of
from q36eval.canaries.paired import (
    Reading,
    budget_used,
    cut_off,
    failed,
    loops,
    margin,
    meets_schema,
    over_seeds,
    rate,
    right_numbers_wrong_conclusion,
    unended,
)
from q36eval.canaries.specification import CanarySpec
from q36eval.metrics import ALL, METRICS, DeclaredFigure
from q36eval.records import ItemOutcome, Lane, Measurement, ProbeName

Measure = Callable[[DeclaredFigure, Sequence[ItemOutcome]], Measurement | None]

FIXED = "fixed prompts"
"""The family of all prompts that are judged as a rate: a single canary has too few of them."""

SAMPLED = {
    "failure_rate": failed,
    "unended_rate": unended,
    "loop_rate": loops,
    "budget_used": budget_used,
}
"""Readings of sampled answers, by metric; `budget_used` shows reasoning that takes longer than the reference's."""

CONCLUSIONS = {discount.name, price_line.name}
"""Checks of answers that compare prices."""

CALLS = {tool_call.name, tool_calls.name}
"""Checks of answers that must hold a call."""


@dataclass(frozen=True)
class PlannedFigure:
    """One figure: its name, its canaries, and its measurement.

    `off_list`: over fixed prompts, without required ones. `of_answers`: it depends on answers that the reference must
    be able to give, and reports its competence.
    """

    declared: DeclaredFigure
    specs: tuple[CanarySpec, ...]
    measure: Measure
    off_list: bool = False
    of_answers: bool = True

    def measured(self, outcomes: Sequence[ItemOutcome], planned: Sequence[PlannedItem] | None) -> Measurement | None:
        """From the outcomes so far, with the reference's competence on the stages begun; None without a question."""
        specs = {spec.id: spec for spec in self.specs}
        own = [outcome for outcome in outcomes if outcome.group in specs]
        if self.off_list:
            own = [o for o in own if not specs[o.group].absolute or why_not_absolute(o.reference) is not None]
        measurement = self.measure(self.declared, own)
        if measurement is None or not self.of_answers:
            return measurement
        items = [item for item in planned or () if item.canary in specs]
        if self.off_list:
            items = [replace(item, canary=FIXED) for item in items if not item.absolute]
            clusters = measurement.clusters
            assert clusters is not None, "a rate has its clusters"
            clusters = clusters.model_copy(update={"families": (FIXED,) * len(clusters.units)})
            measurement = measurement.model_copy(update={"clusters": clusters})
        return measurement.model_copy(update={"competence": None if planned is None else competence_of(items)})


def declared_figures(specs: Sequence[CanarySpec]) -> tuple[DeclaredFigure, ...]:
    """The probe's figures once everything is evaluated with a reference that can do the canaries."""
    return tuple(figure.declared for figure in planned_figures(specs) if figure.declared.items)


def summarize_outcomes(
    specs: Sequence[CanarySpec], outcomes: Sequence[ItemOutcome], planned: Sequence[PlannedItem] | None = None
) -> Iterator[Measurement]:
    """All measurements of the probe; a figure without a question is omitted, hence not measured.

    `planned` is the reference's result on every item of the stages begun; None if unknown.
    """
    for figure in planned_figures(specs):
        measurement = figure.measured(outcomes, planned)
        if measurement is not None:
            yield measurement


def planned_figures(specs: Sequence[CanarySpec]) -> Iterator[PlannedFigure]:
    """Every figure over these canaries, in the order in which they are measured."""
    drawn = [spec for spec in specs if spec.family is not None]
    families = [spec for spec in drawn if spec.generation.sampling is None]
    for name, chosen in _slices(families):
        yield _rate("failure_rate", name, chosen, failed)
        yield _rate("cut_off_rate", name, chosen, cut_off)
        yield _figure("decisive_margin_ratio", name, chosen, margin)
    concluding = [spec for spec in families if CONCLUSIONS & set(spec.checks)]
    if concluding:
        yield _rate("right_numbers_wrong_conclusion", ALL, concluding, right_numbers_wrong_conclusion)
    calling = [spec for spec in families if CALLS & set(spec.checks)]
    for name, chosen in _slices(calling, lanes=()):
        yield _rate("schema_accuracy", name, chosen, meets_schema)
    yield from _of_fixed_prompts([spec for spec in specs if spec.must_pass is not None])
    # answers with reasoning, over prompts and seeds: right, ended, sound, and no longer
    for name, chosen in _slices([spec for spec in drawn if spec.generation.sampling is not None]):
        for metric, read in SAMPLED.items():
            yield _figure(f"thinking_{metric}", name, chosen, partial(over_seeds, read=read))


def _of_fixed_prompts(fixed: Sequence[CanarySpec]) -> Iterator[PlannedFigure]:
    """Flips of required prompts, of single canaries too, and the rate of everything else."""
    absolute = [spec for spec in fixed if spec.absolute]
    for name, chosen in _slices(absolute):
        yield _figure("must_pass_flips", name, chosen, flips, of_answers=False)
    for name, chosen in _together(fixed):
        yield _figure("must_pass_unstable", name, chosen, unstable, of_answers=False)
    for name, chosen in _together(fixed):
        yield _rate("fixed_prompt_failure_rate", name, chosen, failed, off_list=True)


def _figure(
    metric: str,
    slice_name: str,
    specs: Sequence[CanarySpec],
    measure: Measure,
    *,
    off_list: bool = False,
    of_answers: bool = True,
) -> PlannedFigure:
    surely = [spec for spec in specs if not (off_list and spec.absolute)]
    items, clusters = sum(map(_items_of, surely)), sum(map(_prompts_of, surely))
    declared = METRICS[ProbeName.CANARIES, metric].declared(slice_name, items=items, clusters=clusters)
    return PlannedFigure(declared, tuple(specs), measure, off_list, of_answers)


def _rate(
    metric: str, slice_name: str, specs: Sequence[CanarySpec], read: Reading, *, off_list: bool = False
) -> PlannedFigure:
    """The share of answers for which `read` returns 1."""
    return _figure(metric, slice_name, specs, partial(rate, read=read), off_list=off_list)


def _slices(specs: Sequence[CanarySpec], lanes: Sequence[Lane] = tuple(Lane)) -> list[tuple[str, list[CanarySpec]]]:
    """Every canary alone, then those together."""
    return [*((spec.id, [spec]) for spec in specs), *_together(specs, lanes)]


def _together(specs: Sequence[CanarySpec], lanes: Sequence[Lane] = tuple(Lane)) -> list[tuple[str, list[CanarySpec]]]:
    """Each lane's, then all; nothing for a lane without any."""
    by_lane = [(lane.value, [spec for spec in specs if lane in spec.lanes]) for lane in lanes]
    return [(name, chosen) for name, chosen in [*by_lane, (ALL, list(specs))] if chosen]


def _items_of(spec: CanarySpec) -> int:
    """The number of a canary's questions, one per seed if it is sampled."""
    sampling = spec.generation.sampling
    return _prompts_of(spec) * (1 if sampling is None else sampling.seeds)


def _prompts_of(spec: CanarySpec) -> int:
    """The number of a canary's prompts: each is a cluster."""
    return spec.family.n if spec.family is not None else len(spec.must_pass or ())
