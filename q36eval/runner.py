"""Runs probes: measures the branch anew beside what was captured of the reference, writes everything as it is made.

Nothing is decided here but, by a rule that is handed in, when enough was asked.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from q36eval.asking import Work, finished_items, in_group
from q36eval.engines.base import Engine
from q36eval.errors import ExitCode, Q36Error
from q36eval.following import known_of
from q36eval.probes import Confirms, Digest, InRounds, Probe, WorkItem
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName

Captures = Mapping[ProbeName, Mapping[str, Digest]]
"""What is kept of the reference's answers, by probe and item key."""


class Sink(Protocol):
    """Where outcomes and measurements go, at once."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None: ...

    def add_measurement(self, measurement: Measurement) -> None: ...

    def add_failure(self, failure: ProbeFailure) -> None: ...

    def known_items(self) -> Sequence[ItemOutcome]:
        """Outcomes already written, when a run is resumed."""
        ...


class MutedSink:
    """A sink for planning that only checks."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None: ...

    def add_measurement(self, measurement: Measurement) -> None: ...

    def add_failure(self, failure: ProbeFailure) -> None: ...

    def known_items(self) -> Sequence[ItemOutcome]:
        return ()


class Progress(Protocol):
    """What the runner tells while it works."""

    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@runtime_checkable
class TimesTasks(Protocol):
    """Progress that can say how long each task will still take."""

    def expect(self, task: str, tokens: int) -> None: ...

    def worked(self, task: str, tokens: int, seconds: float) -> None: ...

    def dropped(self, task: str, tokens: int) -> None: ...


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
    missing = Digest(error="the reference could not be measured on this item")
    progress.stage("measuring the branch", sum(len(work.todo) for work in works))
    timed = progress if isinstance(progress, TimesTasks) else None
    if timed is not None:
        for work in works:
            for item in work.todo:
                timed.expect(_name(work, item), item.tokens)
    outcomes = list(sink.known_items())
    rounds = max((work.rounds for work in works), default=0)
    for number in range(rounds):
        for work, item, results in finished_items(engine, works, number):
            progress.advance()
            if timed is not None:
                timed.worked(_name(work, item), item.tokens, results.seconds)
            if work.failed is not None:
                continue
            reference = known_of(captures[work.probe.name], item.key) or missing
            try:
                found = work.probe.compare(engine, item, results, reference)
                sink.add_items(found)
                outcomes += found
            except Q36Error:
                raise
            except Exception as error:
                _fail(work, sink, error)
        if rule is not None and number + 1 < rounds:
            for work in works:
                _settle(work, number, outcomes, rule, progress)
    for work in works:
        _confirm(engine, work, outcomes, sink, progress)


def _confirm(engine: Engine, work: Work, outcomes: Sequence[ItemOutcome], sink: Sink, progress: Progress) -> None:
    """Ask the branch again what its probe does not believe at once; each outcome replaces the one it stands for."""
    probe = work.probe
    if work.failed is not None or not isinstance(probe, Confirms):
        return
    try:
        found = {outcome.item_key: outcome for outcome in _own(work, outcomes)}  # a retry replaces
        again = [in_group(item, probe.name) for item in probe.doubtful(list(found.values()))]
        if again:
            progress.stage("asking again, in other batches", len(again))
        for _, item, results in finished_items(engine, [Work(probe, again)]):
            sink.add_items([probe.confirmed(item, results, found[item.key])])
            progress.advance()
    except Q36Error:
        raise
    except Exception as error:
        _fail(work, sink, error)


def _settle(work: Work, number: int, outcomes: Sequence[ItemOutcome], rule: StoppingRule, progress: Progress) -> None:
    """Mark the tasks of a probe of which all that is judged is settled after that round; a task not judged goes on.

    A task that a resumed run knows later items of was open at this look: it is looked at after the last of their
    rounds, never when some of a block are answered and others not. The longest are asked first, and they are no sample.
    """
    probe = work.probe
    if work.failed is not None or not isinstance(probe, InRounds):
        return
    own = {outcome.item_key: outcome for outcome in _own(work, outcomes)}  # a retry replaces
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


def _own(work: Work, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """The outcomes of what a probe asks: a run resumed with fewer items holds parts of blocks it asks no more."""
    keys = {item.key for item in work.items}
    return [outcome for outcome in outcomes if outcome.probe == work.probe.name and outcome.item_key in keys]


def _name(work: Work, item: WorkItem) -> str:
    """What a person calls the task of that item."""
    return item.task or work.probe.name.value


def summarize_probes(works: Sequence[Work], sink: Sink) -> None:
    """Turn the outcomes in history into measurements, probe by probe."""
    outcomes = sink.known_items()
    for work in works:
        if work.failed is not None:
            continue
        try:
            measurements = list(work.probe.summarize(_own(work, outcomes)))
            _check_distinct(measurements)
        except Q36Error:
            raise
        except Exception as error:
            _fail(work, sink, error)
            continue
        for measurement in measurements:
            sink.add_measurement(measurement)


def _check_distinct(measurements: Sequence[Measurement]) -> None:
    """History keeps one figure per key: of two with one key the second would silently replace the first.

    Raises:
        ValueError: names the key.
    """
    keys = [measurement.key for measurement in measurements]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise ValueError(f"it measured {twice[0]} more than once, so none of its figures can be trusted")


def _fail(work: Work, sink: Sink, error: Exception) -> None:
    where = traceback.extract_tb(error.__traceback__)[-1]
    work.failed = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))


def plan_probes(probes: Iterable[Probe], tokenizer: Any, sink: Sink) -> list[Work]:
    """Each probe with its items; a probe whose plan crashes is recorded as failed."""
    works = []
    for probe in probes:
        work = Work(probe, [])
        try:
            work.items = [in_group(item, probe.name) for item in probe.plan(tokenizer)]
            if not work.items or not all(item.scores or item.generations for item in work.items):
                raise ValueError("it planned nothing, or an item that asks nothing")
        except Q36Error:
            raise
        except Exception as error:
            _fail(work, sink, error)
        works.append(work)
    return works


def asked(works: Sequence[Work]) -> dict[str, tuple[int, ...]]:
    """Every request's token ids by its key."""
    items = [item for work in works for item in work.items]
    scores = {request.key: request.token_ids for item in items for request in item.scores}
    return scores | {request.key: request.token_ids for item in items for request in item.generations}


def same_tokenizer(one: Any, other: Any) -> bool:
    """Whether two tokenizers surely turn every text and conversation into the same tokens: the same rules throughout.

    False only means that what they do must be compared.
    """
    if type(one) is not type(other) or not hasattr(one, "backend_tokenizer"):
        return False
    rules = [
        (tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.special_tokens_map)
        for tokenizer in (one, other)
    ]
    return bool(rules[0] == rules[1])


class AskedDifferentlyError(Q36Error):
    """The branch's tokenizer or chat template turns the same questions into other tokens than the reference's."""

    exit_code = ExitCode.FAIL


def run_probes(
    branch: Engine,
    reference_tokenizer: Any,
    captures_of: Callable[[Sequence[Work]], Captures],
    probes: Sequence[Probe],
    sink: Sink,
    progress: Progress,
    rule: StoppingRule | None = None,
) -> dict[str, float]:
    """Measure `branch` against its reference with all `probes`; returns the seconds each stage took.

    `captures_of` gives the reference's digests of what is asked (see `q36eval.capturing.captured`) before the branch is
    asked anything; what it raises ends the run.

    Raises:
        AskedDifferentlyError: the branch's own tokenizer does not give the reference's tokens.
    """
    seconds: dict[str, float] = {}
    started = time.monotonic()
    theirs = None
    if not same_tokenizer(branch.tokenizer, reference_tokenizer):
        theirs = asked(plan_probes(probes, branch.tokenizer, MutedSink()))
    works = plan_probes(probes, reference_tokenizer, sink)
    ours = asked(works)
    differing = 0 if theirs is None else sum(theirs.get(key) != token_ids for key, token_ids in ours.items())
    if differing:
        raise AskedDifferentlyError(
            f"the branch's tokenizer or chat template asks {differing} of {len(ours)} questions in other tokens than "
            f"the reference's"
        )
    captures = captures_of(works)
    seconds["reference"] = time.monotonic() - started
    started = time.monotonic()
    done = {
        (outcome.probe, outcome.item_key)
        for outcome in sink.known_items()
        if outcome.branch.error is None and outcome.reference.error is None
    }
    for work in works:
        work.done = frozenset(key for probe, key in done if probe == work.probe.name)
    measure_branch(branch, works, captures, sink, progress, rule)
    summarize_probes(works, sink)
    seconds["branch"] = time.monotonic() - started
    return seconds
