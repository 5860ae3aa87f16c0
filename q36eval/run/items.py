"""Requests an engine's results for work items, and returns each item with all of them.

All requests to score go to the engine as one plan, and so do all requests to generate. Some items have a second step,
requested when the reference's answer to the first is known; it is stored next to the first, under a separate key.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from q36eval.engines.base import Engine, Generated, Scored
from q36eval.engines.retries import Retried, with_retry
from q36eval.errors import EngineError, UsageError
from q36eval.probes import Digest, ItemResults, Probe, WorkItem, in_group

Round = tuple[str, int]
"""A stage and one of its blocks."""


@dataclass
class Work:
    """One probe with all its items; `done` are the keys of those already evaluated."""

    probe: Probe
    items: list[WorkItem]
    failed: str | None = None
    done: frozenset[str] = frozenset()
    resolved: frozenset[str] = frozenset()
    """Tasks with a clear result, whose other items are not evaluated."""

    @property
    def todo(self) -> list[WorkItem]:
        """The remaining items."""
        return [item for item in self.items if item.key not in self.done]

    @property
    def stages(self) -> list[str]:
        """Its stages in the order of planning, which is the order of evaluation."""
        return list(dict.fromkeys(item.stage for item in self.items))

    def of_stage(self, stage: str) -> list[WorkItem]:
        """The items of one stage."""
        return [item for item in self.items if item.stage == stage]

    def blocks(self, stage: str) -> list[int]:
        """The blocks of one stage in the order of evaluation."""
        return sorted({item.block for item in self.of_stage(stage)})

    def of_round(self, place: Round | None) -> list[WorkItem]:
        """The items of one round without those of resolved tasks; None selects all items."""
        if place is None:
            return self.items
        items = (item for item in self.items if (item.stage, item.block) == place)
        return [item for item in items if item.task not in self.resolved]


@dataclass
class _Pending:
    work: Work
    item: WorkItem
    missing: int
    scored: dict[str, Scored] = field(default_factory=dict)
    generated: dict[str, Generated] = field(default_factory=dict)


def finished_items(
    engine: Engine,
    works: Sequence[Work],
    place: Round | None = None,
    retried: Retried | None = None,
) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    """Every item (of the round `place`) with all its results, as soon as the last one arrives.

    Finished items are passed to the engine too, so that its batches are those of an uninterrupted run. An errored
    request is made again in a batch of other errored ones before its error is final; `retried` is called each time. An
    item without needed requests is finished immediately: its probe knows the reason.
    """
    waiting: dict[str, _Pending] = {}
    items = [(work, item) for work in works for item in work.of_round(place)]
    for work, item in items:
        if item.key not in work.done:
            answered = [request.key for request in item.generations if request.needed]
            entry = _Pending(work, item, len(item.scores) + len(answered))
            for key in [*(request.key for request in item.scores), *answered]:
                if key in waiting:
                    raise ValueError(f"two requests of the {work.probe.name} probe have the same key {key!r}")
                waiting[key] = entry
            if not entry.missing:
                yield work, item, ItemResults()
    scores = [request for _, item in items for request in item.scores]
    generations = [request for _, item in items for request in item.generations]
    keys = [request.key for request in scores] + [request.key for request in generations]
    known = frozenset(key for key in keys if key not in waiting)
    for result in with_retry(partial(engine.score, known=known), scores, retried):
        yield from _complete(waiting.pop(result.request.key), result)
    for answer in with_retry(partial(engine.generate, known=known), generations, retried):
        yield from _complete(waiting.pop(answer.request.key), answer)
    if waiting:
        raise EngineError(
            "engine-results-missing",
            f"The engine gave no result for {len(waiting)} requests, {next(iter(waiting))!r} first.",
        )


def _complete(entry: _Pending, result: Scored | Generated) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    if isinstance(result, Scored):
        entry.scored[result.request.key] = result
    else:
        entry.generated[result.request.key] = result
    entry.missing -= 1
    if entry.missing == 0:
        yield entry.work, entry.item, ItemResults(entry.scored, entry.generated)


def refuse_unanswerable(generates: bool, works: Iterable[Work], whose: str) -> None:
    """Refuse items that need answers if the engine does not generate, before waiting for any.

    Raises:
        UsageError: a probe has such items.
    """
    if generates:
        return
    needing = [work.probe.name.value for work in works if any(item.generations for item in work.todo)]
    if needing:
        left_out = " ".join(f"--skip {name}" for name in needing)
        raise UsageError(
            "weights-too-large",
            f"The {whose}'s weights do not fit the device and are run layer by layer, which scores texts and generates "
            f"no answers: measure {' and '.join(needing)} where they fit, or leave them out with {left_out}.",
        )


SECOND = "/then"
"""The suffix of the key of an item's second step."""


def second_items(work: Work, known: Mapping[str, Digest]) -> list[WorkItem]:
    """The second steps of the reference, of every item whose first answer is `known`."""
    probe = work.probe
    if not probe.follows_up:
        return []
    second_steps = []
    for item in work.items:
        if item.key not in known:
            continue
        more = probe.follow_up(item, known[item.key])
        if more.scores or more.repeats:
            second = WorkItem(item.key + SECOND, scores=more.scores, generations=more.repeats, stage=item.stage)
            second_steps.append(in_group(second, probe.name))
    return second_steps


def first_key(second_key: str) -> str:
    """The key of the item to which a second step belongs."""
    return second_key.removesuffix(SECOND)


def followed_up(items: Iterable[WorkItem], second: Iterable[WorkItem]) -> list[WorkItem]:
    """The items for the branch: with the scores of the second step; its repeats are only for the reference."""
    scores = {item.key: item.scores for item in second}
    return [replace(item, scores=item.scores + scores.get(item.key + SECOND, ())) for item in items]


def known_of(captures: Mapping[str, Digest], key: str) -> Digest | None:
    """All captured data of one item, both steps as one digest; None if the first is missing."""
    first, second = captures.get(key), captures.get(key + SECOND)
    if first is None or second is None:
        return first
    return Digest(first.values | second.values, first.tensors | second.tensors, first.error)


MISSING = Digest(error="the reference could not be measured on this item")


class BothSteps(Mapping[str, Digest]):
    """The captured data of the items with these keys, both steps as one digest, `MISSING` if absent; read from disk on
    access."""

    def __init__(self, captures: Mapping[str, Digest], keys: Collection[str]) -> None:
        self._captures, self._keys = captures, dict.fromkeys(keys)

    def __getitem__(self, key: str) -> Digest:
        if key not in self._keys:
            raise KeyError(key)
        return known_of(self._captures, key) or MISSING

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
