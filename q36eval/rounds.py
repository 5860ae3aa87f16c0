"""Asks a branch round by round, judges every item as it comes, and asks again what is not to be believed at once."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from q36eval.asking import Work, finished_items, in_group
from q36eval.engines.base import Engine
from q36eval.errors import Q36Error
from q36eval.following import known_of
from q36eval.probes import Confirms, Digest, InRounds, ItemResults, WorkItem
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.sinks import Captures, Progress, Sink, TimesTasks


class StoppingRule(Protocol):
    """When enough was asked of a task."""

    def judged(self, probe: ProbeName) -> frozenset[str]:
        """Keys of the measurements that it judges of that probe."""
        ...

    def settled(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        """Keys of those measurements that more items would not change the judgement of."""
        ...


def measure_branch(
    engine: Engine,
    works: Sequence[Work],
    captures: Captures,
    sink: Sink,
    progress: Progress,
    rule: StoppingRule | None = None,
) -> None:
    """Judge the items of every probe, round by round, and write each outcome at once.

    A probe that crashes is recorded and the others go on. After each round `rule` says which tasks are settled; without
    a rule everything is asked.
    """
    progress.stage("measuring the branch", sum(len(work.todo) for work in works))
    if isinstance(progress, TimesTasks):
        for work in works:
            for item in work.todo:
                progress.expect(_name(work, item), item.tokens)
    outcomes = list(sink.known_items())
    rounds = max((work.rounds for work in works), default=0)
    for number in range(rounds):
        for work, item, results in finished_items(engine, works, number):
            progress.advance()
            if isinstance(progress, TimesTasks):
                progress.worked(_name(work, item), item.tokens, results.seconds)
            if work.failed is None:
                outcomes += _compared(engine, work, item, results, captures, sink)
        if rule is not None and number + 1 < rounds:
            for work in works:
                _settle(work, number, outcomes, rule, progress)
    for work in works:
        _confirm(engine, work, outcomes, sink, progress)


def _compared(
    engine: Engine, work: Work, item: WorkItem, results: ItemResults, captures: Captures, sink: Sink
) -> Sequence[ItemOutcome]:
    """The outcomes of one item, written at once; none where the probe crashed, which is recorded."""
    missing = Digest(error="the reference could not be measured on this item")
    reference = known_of(captures[work.probe.name], item.key) or missing
    try:
        found = work.probe.compare(engine, item, results, reference)
        sink.add_items(found)
    except Q36Error:
        raise
    except Exception as error:
        fail_probe(work, sink, error)
        return ()
    return found


def _confirm(engine: Engine, work: Work, outcomes: Sequence[ItemOutcome], sink: Sink, progress: Progress) -> None:
    """Ask the branch again what its probe does not believe at once; each outcome replaces the one it stands for."""
    probe = work.probe
    if work.failed is not None or not isinstance(probe, Confirms):
        return
    try:
        found = {outcome.item_key: outcome for outcome in own_outcomes(work, outcomes)}  # a retry replaces
        again = [in_group(item, probe.name) for item in probe.doubtful(list(found.values()))]
        if again:
            progress.stage("asking again, in other batches", len(again))
        for _, item, results in finished_items(engine, [Work(probe, again)]):
            sink.add_items([probe.confirmed(item, results, found[item.key])])
            progress.advance()
    except Q36Error:
        raise
    except Exception as error:
        fail_probe(work, sink, error)


def _settle(work: Work, number: int, outcomes: Sequence[ItemOutcome], rule: StoppingRule, progress: Progress) -> None:
    """Mark the tasks of a probe of which all that is judged is settled after that round; a task not judged goes on.

    A task that a resumed run knows later items of was open at this look: it is looked at after the last of their
    rounds, never when some of a block are answered and others not. The longest are asked first, and they are no sample.
    """
    probe = work.probe
    if work.failed is not None or not isinstance(probe, InRounds):
        return
    own = {outcome.item_key: outcome for outcome in own_outcomes(work, outcomes)}  # a retry replaces
    later = [item for item in work.items if item.block > number]
    went_on = {item.task for item in later if item.key in own}
    judged = {key: probe.tasks_of(key) for key in rule.judged(probe.name)}
    looked_at = frozenset(task for tasks in judged.values() for task in tasks)
    ahead = {item.task for item in later if item.task in looked_at} - work.settled - went_on
    keys = [key for key, tasks in judged.items() if tasks & ahead]
    if not keys:
        return
    clear = rule.settled(probe.look(list(own.values()), keys))
    settled = ahead - {task for key in keys if key not in clear for task in judged[key]}
    left_out = [item for item in later if item.task in settled and item.key not in work.done]
    progress.advance(len(left_out))
    if isinstance(progress, TimesTasks):
        for item in left_out:
            progress.dropped(_name(work, item), item.tokens)
    work.settled |= settled


def own_outcomes(work: Work, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """The outcomes of what a probe asks: a run resumed with fewer items holds parts of blocks it asks no more."""
    keys = {item.key for item in work.items}
    return [outcome for outcome in outcomes if outcome.probe == work.probe.name and outcome.item_key in keys]


def _name(work: Work, item: WorkItem) -> str:
    """What a person calls the task of that item."""
    return item.task or work.probe.name.value


def fail_probe(work: Work, sink: Sink, error: Exception) -> None:
    """Record that a probe crashed, and where; its figures are those of nothing."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    work.failed = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))
