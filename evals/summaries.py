"""From item outcomes to measurements: each group, its slices, RULER's lengths, and the suite as a whole."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from q36eval.evals.competence import LENGTH_FIELDS, Known, merged
from q36eval.evals.figures import (
    ACCURACY,
    ANSWERS_CHANGED,
    ITEMS_GAINED,
    ITEMS_LOST,
    ITEMS_PLANNED,
    NO_PLAN,
    RECOVERY,
    UNITS,
    Plan,
    accuracy,
    hidden_changes,
    items_planned,
    perplexities,
)
from q36eval.evals.paired_clusters import PlannedItem, estimate_weights
from q36eval.evals.suite import TaskGroup
from q36eval.gate.judgement import most_effective_clusters
from q36eval.metrics import DeclaredFigure, Metric
from q36eval.records import ItemOutcome, Measurement

SUITE = "suite"
"""The slice of all items of the suite that are scored right or wrong."""


def suite_measurements(
    groups: Sequence[TaskGroup],
    outcomes: Sequence[ItemOutcome],
    planned: Sequence[PlannedItem] = (),
    known: Known | None = None,
) -> Iterator[Measurement]:
    """Every group, then all right-or-wrong items together if several groups have some.

    `planned` are all items, of which the outcomes are a part, and `known` the reference's answers to them, if known.
    """
    by_group: dict[str, list[ItemOutcome]] = {group.name: [] for group in groups}
    for outcome in outcomes:
        by_group.setdefault(outcome.group, []).append(outcome)
    for group in groups:
        own_outcomes = by_group[group.name]
        own = [item for item in planned if item.group == group.name]
        yield from measurements(group, own_outcomes, Plan(own, known, estimate_weights(own_outcomes, own)))
        if own_outcomes and group.measure == "accuracy" and own:
            yield items_planned(group.slice, len(own), own_outcomes)
    judged = [group.name for group in groups if group.measure == "accuracy" and by_group[group.name]]
    if len(judged) > 1:
        together = [outcome for name in judged for outcome in by_group[name]]
        every = [item for item in planned if item.group in judged]
        weights: dict[str, float] = {}
        for name in judged:
            weights |= estimate_weights(by_group[name], [item for item in every if item.group == name]) or {}
        plan = Plan(every, None if known is None else merged(every, known), weights or None)
        yield from accuracy(SUITE, together, plan, in_blocks=False)
        yield from hidden_changes(SUITE, together, plan)


def measurements(group: TaskGroup, outcomes: Sequence[ItemOutcome], plan: Plan = NO_PLAN) -> Iterator[Measurement]:
    """The group as a whole, then each value of each of its slice fields; slices without an item yield nothing."""
    for place, own in _slices(group, outcomes):
        if group.measure == "perplexity":
            yield from perplexities(place.name, own)
            continue
        yield from accuracy(place.name, own, place.part_of(plan), in_blocks=place.in_blocks(plan))
        if place.field is None:
            yield from hidden_changes(place.name, own, plan)


def accuracies(
    group: TaskGroup, outcomes: Sequence[ItemOutcome], plan: Plan, slices: Collection[str]
) -> Iterator[Measurement]:
    """The figures of those slices of a group that may be looked at early: its accuracies."""
    for place, own in _slices(group, outcomes):
        if place.name in slices:
            weighed = replace(plan, weights=estimate_weights(outcomes, plan.items))
            yield from accuracy(place.name, own, place.part_of(weighed), in_blocks=place.in_blocks(plan))


def declared_figures(
    groups: Sequence[TaskGroup], planned: Sequence[PlannedItem] | None = None
) -> Iterator[DeclaredFigure]:
    """The figures of `suite_measurements` for these groups once all `planned` items are evaluated.

    Without a plan only those known from the suite's file: whole groups and RULER's lengths (see `only_data_tell`).
    """
    of_accuracy = []
    for group in groups:
        own = None if planned is None else [item for item in planned if item.group == group.name]
        if own is None or own:
            of_accuracy += [group] if group.measure == "accuracy" else []
            yield from _declared_of_file(group) if own is None else _declared_of_plan(group, own)
    if len(of_accuracy) > 1:
        names = {group.name for group in of_accuracy}
        known = [group.items for group in of_accuracy if group.items is not None]
        items, clusters = sum(known) if len(known) == len(of_accuracy) else None, None
        if planned is not None:
            together = [item for item in planned if item.group in names]
            items, clusters = len(together), len({item.cluster for item in together})
        figures = (ACCURACY, RECOVERY, ITEMS_LOST, ITEMS_GAINED, ANSWERS_CHANGED)
        yield from (_declared(figure, SUITE, items, clusters) for figure in figures)


def only_data_tell(groups: Sequence[TaskGroup], metric: str, name: str) -> bool:
    """Whether a group may have that figure over that slice although its file does not show it.

    By the value of a field (a subject, a task), or as a mean over the tasks in its data.
    """
    for group in groups:
        inside = name == group.slice or name.startswith(_below(group, ""))
        if not group.slice_fields or not inside:
            continue
        value = "" if name == group.slice else name.removeprefix(_below(group, ""))
        if value.isdigit() and group.ruler is not None:
            continue  # the file names every length
        figures = UNITS if group.measure == "perplexity" else (ACCURACY, RECOVERY)
        if metric in {figure.name for figure in figures}:
            return True
    return False


def _declared_of_file(group: TaskGroup) -> Iterator[DeclaredFigure]:
    yield from _declared_whole(group, group.items, None if group.measure == "accuracy" else group.items)
    lengths = () if group.ruler is None else group.ruler.lengths
    if group.measure == "accuracy" and any(field in LENGTH_FIELDS for field in group.slice_fields):
        for length in lengths:
            items = None if group.items is None else group.items // len(lengths)
            yield from (_declared(figure, _below(group, str(length)), items, None) for figure in (ACCURACY, RECOVERY))


def _declared_of_plan(group: TaskGroup, planned: Sequence[PlannedItem]) -> Iterator[DeclaredFigure]:
    for place in _places(group, {item.stratum for item in planned}):
        own = [item for item in planned if place.holds(item.stratum)]
        clusters = len({item.cluster for item in own})
        if place.field is None:
            figures = _declared_whole(group, len(own), clusters)
        else:
            metrics = tuple(UNITS) if group.measure == "perplexity" else (ACCURACY, RECOVERY)
            figures = (_declared(metric, place.name, len(own), clusters) for metric in metrics)
        yield from (replace(figure, effective_clusters=_effective(figure.metric.name, own)) for figure in figures)


def _effective(metric: str, planned: Sequence[PlannedItem]) -> int | None:
    """The maximum of effective clusters of a perplexity's documents; None for other figures."""
    units: Counter[str] = Counter()
    for item in planned:
        counted = dict(item.units).get(metric)
        if counted is None:
            return None
        units[item.cluster] += counted
    return most_effective_clusters(list(units.values()))


def _declared_whole(group: TaskGroup, items: int | None, clusters: int | None) -> Iterator[DeclaredFigure]:
    figures: tuple[Metric, ...] = tuple(UNITS)
    if group.measure == "accuracy":
        figures = (ACCURACY, RECOVERY, ITEMS_LOST, ITEMS_GAINED, ITEMS_PLANNED, ANSWERS_CHANGED)
    yield from (_declared(figure, group.slice, items, clusters) for figure in figures)


def _declared(metric: Metric, name: str, items: int | None, clusters: int | None) -> DeclaredFigure:
    """A perplexity counts the tokens, words or bytes of its documents, which only the texts show."""
    return metric.declared(name, items=None if metric in UNITS else items, clusters=clusters)


@dataclass(frozen=True)
class _Place:
    """A slice's name: the whole group if `field` is None, else its items of one `value` at a `position`."""

    name: str
    field: str | None = None
    value: str = ""
    position: int = 0

    def holds(self, stratum: str) -> bool:
        """Whether an item of that stratum belongs to it."""
        return self.field is None or stratum.split("/")[self.position] == self.value

    def in_blocks(self, plan: Plan) -> bool:
        """Whether it may be looked at after each block: draws by margin give a slice no fixed number per block."""
        return self.field is None or all(item.drawn is None for item in plan.items)

    def part_of(self, plan: Plan) -> Plan:
        """The plan of the group's items in it."""
        return plan if self.field is None else replace(plan, items=[i for i in plan.items if self.holds(i.stratum)])


def _places(group: TaskGroup, strata: Collection[str]) -> Iterator[_Place]:
    """The group, then each value of each of its fields among those strata."""
    if not strata:
        return
    yield _Place(group.slice)
    for position, field in enumerate(group.slice_fields):
        values = {stratum.split("/")[position] for stratum in strata}
        for value in sorted(values, key=lambda each: (int(each), "") if each.isdigit() else (0, each)):
            yield _Place(_below(group, value), field, value, position)


def _below(group: TaskGroup, value: str) -> str:
    return value if group.slice == "all" else f"{group.slice}/{value}"


def _slices(group: TaskGroup, outcomes: Sequence[ItemOutcome]) -> Iterator[tuple[_Place, list[ItemOutcome]]]:
    for place in _places(group, {outcome.stratum for outcome in outcomes}):
        yield place, [outcome for outcome in outcomes if place.holds(outcome.stratum)]
