"""From item outcomes to measurements: each group, its slices, RULER's lengths, and the suite as a whole."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evals.accuracy import NO_PLAN, Plan, accuracy, choice_margin, hidden_changes, items_planned, macro_accuracy
from evals.competence import LENGTH_FIELDS, Known, merged
from evals.paired_clusters import PlannedItem, estimate_weights, is_scored
from evals.perplexity import perplexities
from evals.suite import TaskGroup
from q36eval.paired import RecoveryAt, effective_length
from q36eval.records import Counts, Direction, Interval, ItemOutcome, Measurement, ProbeName
from q36eval.stats import DEFAULT_LEVEL

SUITE = "suite"
"""The slice that holds every item of the suite that is scored right or wrong."""

EFFECTIVE_RECOVERY = 0.97
"""What must be kept at a length for it to be effective: the cards' RULER recovery."""


def suite_measurements(
    groups: Sequence[TaskGroup],
    outcomes: Sequence[ItemOutcome],
    planned: Sequence[PlannedItem] = (),
    effective_recovery: float = EFFECTIVE_RECOVERY,
    known: Known | None = None,
) -> Iterator[Measurement]:
    """Every group, then all right-or-wrong items together where several groups have some.

    `planned` are all items that the outcomes are some of, and `known` the reference's answers to them, each where that
    is known.
    """
    by_group: dict[str, list[ItemOutcome]] = {group.name: [] for group in groups}
    for outcome in outcomes:
        by_group.setdefault(outcome.group, []).append(outcome)
    for group in groups:
        found = by_group[group.name]
        own = [item for item in planned if item.group == group.name]
        yield from measurements(group, found, Plan(own, known, estimate_weights(found, own)), effective_recovery)
        if found and group.measure == "accuracy" and own:
            yield items_planned(group.slice, len(own), found)
    judged = [group.name for group in groups if group.measure == "accuracy" and by_group[group.name]]
    if len(judged) > 1:
        together = [outcome for name in judged for outcome in by_group[name]]
        every = [item for item in planned if item.group in judged]
        weights: dict[str, float] = {}
        for name in judged:
            weights |= estimate_weights(by_group[name], [item for item in every if item.group == name]) or {}
        plan = Plan(every, None if known is None else merged(every, known), weights or None)
        yield from accuracy(SUITE, together, plan, in_blocks=False)
        yield from macro_accuracy(SUITE, together, lambda outcome: outcome.group, "groups", plan)
        yield from hidden_changes(SUITE, together, plan)


def measurements(
    group: TaskGroup,
    outcomes: Sequence[ItemOutcome],
    plan: Plan = NO_PLAN,
    effective_recovery: float = EFFECTIVE_RECOVERY,
) -> Iterator[Measurement]:
    """The group as a whole, then each value of each of its slice fields; slices without an item give nothing."""
    lengths: dict[int, RecoveryAt] = {}
    for part in _slices(group, outcomes):
        if group.measure == "perplexity":
            yield from perplexities(part.name, part.outcomes)
            continue
        found = list(accuracy(part.name, part.outcomes, part.of(plan), in_blocks=part.in_blocks(plan)))
        if group.slice_fields:
            found += macro_accuracy(part.name, part.outcomes, _task, "tasks", part.of(plan))
        yield from found
        if part.field is None:
            yield from hidden_changes(part.name, part.outcomes, plan)
            yield from choice_margin(part.name, part.outcomes, plan)
        elif part.field in LENGTH_FIELDS and part.value.isdigit():
            # the mean over tasks is RULER's own figure; with one task there is none beside the plain mean
            recovery = [measurement for measurement in found if measurement.estimator == "derived"][-1]
            lengths[int(part.value)] = RecoveryAt(recovery.value, recovery.effect_interval.lower)
    if lengths:
        yield _effective_length(group.slice, lengths, effective_recovery, outcomes)


def accuracies(
    group: TaskGroup, outcomes: Sequence[ItemOutcome], plan: Plan, slices: Collection[str]
) -> Iterator[Measurement]:
    """Of those slices of a group what may be looked at early: its accuracies."""
    for part in _slices(group, outcomes):
        if part.name in slices:
            weighed = replace(plan, weights=estimate_weights(outcomes, plan.items))
            yield from accuracy(part.name, part.outcomes, part.of(weighed), in_blocks=part.in_blocks(plan))


def _task(outcome: ItemOutcome) -> str:
    """The first slice field tells lm-eval's tasks of a group apart: MMLU's subject, RULER's kind."""
    return outcome.stratum.split("/")[0]


@dataclass(frozen=True)
class _Slice:
    """The whole group where `field` is None, else its items with one value of that field, at that `position`."""

    name: str
    field: str | None
    value: str
    outcomes: Sequence[ItemOutcome]
    position: int = 0

    def in_blocks(self, plan: Plan) -> bool:
        """Whether it may be looked at after each block: draws by margin give a slice no fixed number in every one."""
        return self.field is None or all(item.drawn is None for item in plan.items)

    def of(self, plan: Plan) -> Plan:
        """The plan of those of the group's items that are in this slice."""
        if self.field is None:
            return plan
        own = [item for item in plan.items if item.stratum.split("/")[self.position] == self.value]
        return replace(plan, items=own)


def _slices(group: TaskGroup, outcomes: Sequence[ItemOutcome]) -> Iterator[_Slice]:
    if not outcomes:
        return
    yield _Slice(group.slice, None, "", outcomes)
    prefix = "" if group.slice == "all" else f"{group.slice}/"
    for position, field in enumerate(group.slice_fields):
        by_value: dict[str, list[ItemOutcome]] = {}
        for outcome in outcomes:
            by_value.setdefault(outcome.stratum.split("/")[position], []).append(outcome)
        for value, chosen in sorted(by_value.items(), key=lambda entry: _natural(entry[0])):
            yield _Slice(prefix + value, field, value, chosen, position)


def _natural(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdigit() else (0, value)


def _effective_length(
    name: str, lengths: Mapping[int, RecoveryAt], at_least: float, outcomes: Sequence[ItemOutcome]
) -> Measurement:
    """The longest length up to which recovery holds: by point estimates, and from below by their lower bounds.

    0 is said of a group that keeps too little at its shortest length, NaN where no length was measured.
    """
    found = effective_length(lengths, at_least)
    value = float(found.by_value or 0) if found.measured else math.nan
    lower = float(found.by_lower_bound or 0) if found.measured else math.nan
    upper = math.inf if found.measured else math.nan
    scored = sum(is_scored(outcome) for outcome in outcomes)
    return Measurement(
        probe=ProbeName.EVALS,
        metric="effective_length",
        slice=name,
        unit="tokens",
        direction=Direction.HIGHER_IS_BETTER,
        estimator="derived",
        value=value,
        effect=value,
        effect_interval=Interval(
            lower=lower, upper=upper, level=DEFAULT_LEVEL, method="none above: lower bounds of recovery"
        ),
        counts=Counts(total=len(outcomes), scored=scored, errored=len(outcomes) - scored),
        note=f"recovery of at least {at_least:.4g} at this and every shorter length of {sorted(lengths)}",
    )
