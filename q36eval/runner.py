"""Runs probes: measures the branch anew beside what was captured of the reference, writes everything as it is made.

All that the probes want scored is handed to the engine as one plan, and likewise all that must be generated. Nothing is
decided here.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from q36eval.engines.base import Engine, Generated, Scored
from q36eval.errors import EngineError, ExitCode, Q36Error
from q36eval.probes import Digest, ItemResults, Probe, WorkItem
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


@dataclass
class Work:
    """One probe with everything it asks; `done` are the keys of the items that need no asking any more."""

    probe: Probe
    items: list[WorkItem]
    failed: str | None = None
    done: frozenset[str] = frozenset()

    @property
    def todo(self) -> list[WorkItem]:
        """The items that are still to be asked."""
        return [item for item in self.items if item.key not in self.done]


@dataclass
class _Pending:
    work: Work
    item: WorkItem
    missing: int
    scored: dict[str, Scored] = field(default_factory=dict)
    generated: dict[str, Generated] = field(default_factory=dict)


def finished_items(engine: Engine, works: Sequence[Work]) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    """Every item with all its results, as soon as the last one came; one `score` and one `generate` call for all.

    What is done is named to the engine too, so that its batches are those of an uninterrupted run. A result that
    errored is asked for once more in a batch of other errored ones before its error stands.
    """
    waiting: dict[str, _Pending] = {}
    for number, work in enumerate(works):
        for item in work.todo:
            entry = _Pending(work, item, len(item.scores) + len(item.generations))
            for key in [request.key for request in item.scores] + [request.key for request in item.generations]:
                if key in waiting:
                    raise ValueError(f"two requests of probe {number} have the same key {key!r}")
                waiting[key] = entry
    scores = [request for work in works for item in work.items for request in item.scores]
    generations = [request for work in works for item in work.items for request in item.generations]
    asked_keys = [request.key for request in scores] + [request.key for request in generations]
    known = frozenset(key for key in asked_keys if key not in waiting)
    for result in with_retry(partial(engine.score, known=known), scores):
        yield from _complete(waiting.pop(result.request.key), result)
    for answer in with_retry(partial(engine.generate, known=known), generations):
        yield from _complete(waiting.pop(answer.request.key), answer)
    if waiting:
        raise EngineError(f"The engine gave no result for {len(waiting)} requests, {next(iter(waiting))!r} first.")


def with_retry(call: Callable[[Sequence[Any]], Iterator[Any]], requests: Sequence[Any]) -> Iterator[Any]:
    """Results of `call`; the errored ones are asked for a second time, and what they answer then stands."""
    again = []
    for result in call(requests):
        if result.error is None:
            yield result
        else:
            again.append(result.request)
    if again:
        yield from call(again)


def _complete(entry: _Pending, result: Scored | Generated) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    if isinstance(result, Scored):
        entry.scored[result.request.key] = result
    else:
        entry.generated[result.request.key] = result
    entry.missing -= 1
    if entry.missing == 0:
        yield entry.work, entry.item, ItemResults(entry.scored, entry.generated)


def measure_branch(engine: Engine, works: Sequence[Work], captures: Captures, sink: Sink, progress: Progress) -> None:
    """Judge every item of every probe and write its outcome; a probe that crashes is recorded and the others go on."""
    missing = Digest(error="the reference could not be measured on this item")
    progress.stage("measuring the branch", sum(len(work.todo) for work in works))
    for work, item, results in finished_items(engine, works):
        progress.advance()
        if work.failed is not None:
            continue
        reference = captures[work.probe.name].get(item.key, missing)
        try:
            sink.add_items(work.probe.compare(engine, item, results, reference))
        except Q36Error:
            raise
        except Exception as error:
            _fail(work, sink, error)


def summarize_probes(works: Sequence[Work], sink: Sink) -> None:
    """Turn the outcomes in history into measurements, probe by probe."""
    outcomes = sink.known_items()
    for work in works:
        if work.failed is not None:
            continue
        try:
            measurements = list(
                work.probe.summarize([outcome for outcome in outcomes if outcome.probe == work.probe.name])
            )
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
            work.items = [_in_group(item, probe.name) for item in probe.plan(tokenizer)]
            if not work.items or not all(item.scores or item.generations for item in work.items):
                raise ValueError("it planned nothing, or an item that asks nothing")
        except Q36Error:
            raise
        except Exception as error:
            _fail(work, sink, error)
        works.append(work)
    return works


def _in_group(item: WorkItem, group: str) -> WorkItem:
    """The item with its requests kept apart from other probes': one probe alone gives what it gives among others."""
    return replace(
        item,
        scores=tuple(replace(request, group=group) for request in item.scores),
        generations=tuple(replace(request, group=group) for request in item.generations),
    )


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
    measure_branch(branch, works, captures, sink, progress)
    summarize_probes(works, sink)
    seconds["branch"] = time.monotonic() - started
    return seconds
