"""Which figures of a run are of tasks that were asked only until its own policy was settled. Pure."""

from collections.abc import Collection, Iterable

from q36eval.records import Measurement, ProbeName

PLANNED = "items_planned"
"""The figure that says how many items of a task were planned."""

ASKED = "accuracy"
"""The figure whose counts say how many of them were asked."""

WHOLE_SUITE = "suite"
"""The slice that holds the items of all tasks."""

WHY = (
    "some tasks were asked only until what the run's own policy judges was settled, and of those only what was laid "
    "out for early looks can be judged by another: gate --exhaustive asks them whole"
)

Task = tuple[ProbeName, str]


def tasks_cut_short(measurements: Iterable[Measurement]) -> frozenset[Task]:
    """The tasks of which fewer items were asked than were planned, by probe and slice."""
    found = list(measurements)
    asked = {(m.probe, m.slice): m.counts.total for m in found if m.metric == ASKED}
    planned = {(m.probe, m.slice): m.value for m in found if m.metric == PLANNED}
    return frozenset(task for task, value in planned.items() if task in asked and asked[task] < value)


def of_cut_short(measurement: Measurement, tasks: Collection[Task]) -> bool:
    """Whether a figure is of such a task, or of several tasks of which one is."""
    if measurement.metric == PLANNED:
        return False
    if measurement.slice == WHOLE_SUITE or (measurement.probe, "all") in tasks:
        return any(probe == measurement.probe for probe, _ in tasks)
    return (measurement.probe, measurement.slice.partition("/")[0]) in tasks


def stopped_at_will(measurement: Measurement, tasks: Collection[Task]) -> bool:
    """Whether another policy may not judge it: when asking ended was decided by what was answered, and its test takes
    the number of items for fixed. What was laid out in blocks may be stopped at any of them."""
    return not measurement.laid_out and of_cut_short(measurement, tasks)
