"""Asks a branch stage by stage and round by round, until all was asked or the verdict stands.

Every item is judged as it comes; what is not to be believed at once is asked again.
"""

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from q36eval.engines.base import Engine
from q36eval.errors import Q36Error
from q36eval.gate.integrity import drifts
from q36eval.gate.report import Stage, StageState
from q36eval.probes import Captures, Digest, ItemResults, Probe, Progress, Sink, WorkItem, in_group
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.run.follow_up import known_of
from q36eval.run.items import Work, finished_items
from q36eval.run.order_check import check_order

AGAIN = "asking again"
"""What a person calls asking in other batches, once more."""

PORTION = 4
"""Of what is doubted so many items are asked again before the verdict is looked at: one confirmed flip may decide."""


class StoppingRule(Protocol):
    """When enough was asked, of a task and of a branch."""

    def judged(self, probe: ProbeName) -> frozenset[str]:
        """Keys of the measurements that it judges of that probe."""
        ...

    def settled(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        """Keys of those measurements that more items would not change the judgement of."""
        ...

    def decided(self, measurements: Sequence[Measurement], complete: frozenset[ProbeName]) -> tuple[str, ...]:
        """What the verdict stands by whatever is still measured; nothing while it is open."""
        ...


@dataclass
class Asked:
    """The stages that a branch was asked, and the seconds that each took."""

    stages: list[Stage] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def measure_branch(
    engine: Engine,
    works: Sequence[Work],
    captures: Captures,
    sink: Sink,
    progress: Progress,
    rule: StoppingRule | None = None,
    known: Sequence[Measurement] = (),
) -> Asked:
    """Judge the items of every probe, stage by stage; write each outcome, and each finished probe's figures, at once.

    A probe that crashes is recorded and the others go on. After each round `rule` says which tasks are settled, and
    whether the verdict stands by what is measured so far and `known`: then nothing more is asked, and every probe that
    was not asked whole is recorded as skipped. Without a rule everything is asked.
    """
    progress.stage("measuring the branch", sum(len(work.todo) for work in works))
    for work in works:
        for item in work.todo:
            progress.expect(_name(work, item), item.tokens)
    asking = _Asking(engine, captures, sink, progress, rule, list(known), list(sink.known_items()))
    for work in works:
        for stage in work.stages or [""]:
            started = time.monotonic()
            record = asking.stage(work, stage)
            asking.asked.stages.append(record)
            asking.asked.seconds[record.name] = time.monotonic() - started
    for work in works:
        asking.check_order(work)
    return asking.asked


@dataclass
class _Asking:
    """A branch being asked, and what is known of it so far."""

    engine: Engine
    captures: Captures
    sink: Sink
    progress: Progress
    rule: StoppingRule | None
    measured: list[Measurement]
    """What the verdict may stand by: of complete probes, and of others what may be looked at early."""
    outcomes: list[ItemOutcome]
    complete: frozenset[ProbeName] = frozenset()
    stands: str = ""
    """Why nothing more is asked; empty while the verdict is open."""
    asked: Asked = field(default_factory=Asked)

    def stage(self, work: Work, stage: str) -> Stage:
        """Ask one stage of a probe, unless the verdict stands already."""
        name, items = stage or work.probe.name.value, work.of_stage(stage)
        if self.stands:
            self._left_out(work, items, self.stands)
            return Stage(name=name, state=StageState.NOT_ASKED, items=0, planned=len(items))
        settled = self._rounds(work, stage)
        self._confirm(work)
        last = stage == (work.stages or [""])[-1]
        if settled:  # within a stage
            self._write([figure for figure in self._figures(work) if figure.laid_out])
            # a probe that crashed over what the verdict stood by takes it away again, so the others are asked
            settled = settled if work.failed is None else ()
        elif last:
            self.measured += self._write(self._figures(work))
            self.complete |= frozenset() if work.failed else {work.probe.name}
            settled = self._decided()
        elif self.rule is not None:
            figures = self._figures(work)
            settled = self._decided(figures)
            self._write(figures if settled else [])
        if settled:
            self.stands = f"it was not asked: the verdict stood after {name}, by {', '.join(settled)}"
        return self._record(work, name, items, settled)

    def check_order(self, work: Work) -> None:
        """Evaluate a probe's first items again; an engine that is not what it was ends the probe as a crash does."""
        try:
            found = check_order(self.engine, work, own_outcomes(work, self.outcomes), self.captures, self.progress)
        except Q36Error:
            raise
        except Exception as error:
            fail_probe(work, self.sink, error)
            return
        self._write([] if found is None else [found])
        for drift in drifts([] if found is None else [found]):
            reason = f"the engine does not repeat itself: {drift.note}"
            self.sink.add_failure(ProbeFailure(probe=work.probe.name, reason=reason, kind="crashed"))

    def _rounds(self, work: Work, stage: str) -> tuple[str, ...]:
        """Ask all blocks of a stage, or until the verdict stands; returns what it stands by."""
        blocks = work.blocks(stage)
        looked: dict[str, Measurement] = {}
        for number in blocks:
            for _, item, results in finished_items(self.engine, [work], (stage, number), self.progress.retried):
                self.progress.advance()
                self.progress.worked(_name(work, item), item.tokens, results.seconds)
                if work.failed is None:
                    self.outcomes += _compared(self.engine, work, item, results, self.captures, self.sink)
            if self.rule is None or number == blocks[-1]:
                continue
            looked |= {each.key: each for each in _settle(work, number, self.outcomes, self.rule, self.progress)}
            settled = self._decided(looked.values())
            if settled:
                later = [item for item in work.items if item.block > number and item.task not in work.settled]
                self._left_out(work, later, f"it was asked no further: the verdict stands by {', '.join(settled)}")
                return settled
        return ()

    def _decided(self, more: Iterable[Measurement] = ()) -> tuple[str, ...]:
        return () if self.rule is None else self.rule.decided([*self.measured, *more], self.complete)

    def _figures(self, work: Work) -> list[Measurement]:
        return figures_of(work, self.outcomes, self.sink)

    def _write(self, figures: list[Measurement]) -> list[Measurement]:
        for measurement in figures:
            self.sink.add_measurement(measurement)
        return figures

    def _left_out(self, work: Work, items: Sequence[WorkItem], reason: str) -> None:
        """Record that these are not asked, and why."""
        left = [item for item in items if item.key not in work.done]
        self.progress.advance(len(left))
        for item in left:
            self.progress.dropped(_name(work, item), item.tokens)
        self.sink.add_failure(ProbeFailure(probe=work.probe.name, reason=reason, kind="skipped"))

    def _record(self, work: Work, name: str, items: Sequence[WorkItem], settled: tuple[str, ...]) -> Stage:
        keys = {item.key for item in items}
        found = {outcome.item_key: outcome for outcome in self.outcomes if outcome.item_key in keys}
        errored = any(each.branch.error is not None or each.reference.error is not None for each in found.values())
        state = StageState.PARTLY if work.failed is not None or errored or not items else StageState.MEASURED
        return Stage(name=name, state=state, items=len(found), planned=len(items), settled=settled)

    def _confirm(self, work: Work) -> None:
        """Ask the branch again what its probe does not believe at once; each outcome replaces the one it stands for.

        Under a rule in portions, and no more of them once the verdict stands.
        """
        probe = work.probe
        if work.failed is not None:
            return
        try:
            found = {outcome.item_key: outcome for outcome in own_outcomes(work, self.outcomes)}
            again = [in_group(item, probe.name) for item in probe.doubtful(list(found.values()))]
            size = len(again) if self.rule is None else PORTION
            for start in range(0, len(again), max(1, size)):
                portion = again[start : start + size]
                self.outcomes += self._asked_again(probe, portion, found)
                if self.rule is not None and self._decided(self._figures(work)):
                    return
        except Q36Error:
            raise
        except Exception as error:
            fail_probe(work, self.sink, error)

    def _asked_again(
        self, probe: Probe, items: list[WorkItem], found: Mapping[str, ItemOutcome]
    ) -> Iterator[ItemOutcome]:
        for item in items:
            self.progress.expect(AGAIN, item.tokens)
        for _, item, results in finished_items(self.engine, [Work(probe, items)], retried=self.progress.retried):
            outcome = probe.confirmed(item, results, found[item.key])
            self.sink.add_items([outcome])
            self.progress.worked(AGAIN, item.tokens, results.seconds)
            yield outcome


def figures_of(work: Work, outcomes: Sequence[ItemOutcome], sink: Sink) -> list[Measurement]:
    """The measurements of a probe from its outcomes so far; none where it crashed, which is recorded."""
    if work.failed is not None:
        return []
    try:
        measurements = list(work.probe.summarize(own_outcomes(work, outcomes)))
        _check_distinct(measurements)
    except Q36Error:
        raise
    except Exception as error:
        fail_probe(work, sink, error)
        return []
    return measurements


def _check_distinct(measurements: Sequence[Measurement]) -> None:
    """History keeps one figure per key: of two with one key the second would silently replace the first.

    Raises:
        ValueError: names the key.
    """
    keys = [measurement.key for measurement in measurements]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise ValueError(f"it measured {twice[0]} more than once, so none of its figures can be trusted")


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


def _settle(
    work: Work, number: int, outcomes: Sequence[ItemOutcome], rule: StoppingRule, progress: Progress
) -> Sequence[Measurement]:
    """Mark the tasks of a probe of which all that is judged is settled after that round; a task not judged goes on.

    Returns what it looked at. A task that a resumed run knows later items of was open at this look: it is looked at
    after the last of their rounds, never when some of a block are answered and others not. The longest are asked first,
    and they are no sample.
    """
    probe = work.probe
    if work.failed is not None:
        return ()
    own = {outcome.item_key: outcome for outcome in own_outcomes(work, outcomes)}
    later = [item for item in work.items if item.block > number]
    went_on = {item.task for item in later if item.key in own}
    judged = {key: probe.tasks_of(key) for key in rule.judged(probe.name)}
    looked_at = frozenset(task for tasks in judged.values() for task in tasks)
    ahead = {item.task for item in later if item.task in looked_at} - work.settled - went_on
    keys = [key for key, tasks in judged.items() if tasks & ahead]
    if not keys:
        return ()
    found = probe.look(list(own.values()), keys)
    clear = rule.settled(found)
    settled = ahead - {task for key in keys if key not in clear for task in judged[key]}
    left_out = [item for item in later if item.task in settled and item.key not in work.done]
    progress.advance(len(left_out))
    for item in left_out:
        progress.dropped(_name(work, item), item.tokens)
    work.settled |= settled
    return found


def own_outcomes(work: Work, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """The newest outcomes of what a probe asks, in the order of their first ones.

    A run resumed with fewer items holds parts of blocks it asks no more.
    """
    keys = {item.key for item in work.items}
    own = (outcome for outcome in outcomes if outcome.probe == work.probe.name and outcome.item_key in keys)
    return list({(outcome.item_key, outcome.group): outcome for outcome in own}.values())


def _name(work: Work, item: WorkItem) -> str:
    """What a person calls the task of that item."""
    return item.task or item.stage or work.probe.name.value


def fail_probe(work: Work, sink: Sink, error: Exception) -> None:
    """Record that a probe crashed, and where; its figures are those of nothing."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    work.failed = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))
