"""Asks an engine for everything that work items need, and hands out each item with all its results.

All that the probes want scored is handed to the engine as one plan, and likewise all that must be generated.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from q36eval.engines.base import Engine, Generated, Scored
from q36eval.errors import EngineError
from q36eval.probes import ItemResults, Probe, WorkItem

RETRY_DELAYS_SECONDS = (0.5, 2.0)
"""How long to wait before what errored is asked for again, and again."""

Round = tuple[str, int]
"""A stage and a block of it."""

Retried = Callable[[int, str], None]
"""Hears how many requests are asked for again, and the error of one."""

pause = time.sleep


@dataclass
class Work:
    """One probe with everything it asks; `done` are the keys of the items that need no asking any more."""

    probe: Probe
    items: list[WorkItem]
    failed: str | None = None
    done: frozenset[str] = frozenset()

    settled: frozenset[str] = frozenset()
    """Tasks that need not be asked any further."""

    @property
    def todo(self) -> list[WorkItem]:
        """The items that are still to be asked."""
        return [item for item in self.items if item.key not in self.done]

    @property
    def stages(self) -> list[str]:
        """Its stages in the order in which they were planned, hence asked."""
        return list(dict.fromkeys(item.stage for item in self.items))

    def of_stage(self, stage: str) -> list[WorkItem]:
        """The items of one stage."""
        return [item for item in self.items if item.stage == stage]

    def blocks(self, stage: str) -> list[int]:
        """The blocks of one stage in the order of asking."""
        return sorted({item.block for item in self.of_stage(stage)})

    def of_round(self, asked: Round | None) -> list[WorkItem]:
        """The items of one round, those of settled tasks left out; of None all items."""
        if asked is None:
            return self.items
        found = (item for item in self.items if (item.stage, item.block) == asked)
        return [item for item in found if item.task not in self.settled]


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
    asked: Round | None = None,
    retried: Retried | None = None,
) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    """Every item (of that round) with all its results, as soon as the last one came.

    What is done is named to the engine too, so that its batches are those of an uninterrupted run. A result that
    errored is asked for again in a batch of other errored ones before its error stands; `retried` hears of it. An item
    that asks nothing is finished at once: its probe knows why there was nothing to ask.
    """
    waiting: dict[str, _Pending] = {}
    items = [(work, item) for work in works for item in work.of_round(asked)]
    for work, item in items:
        if item.key not in work.done:
            entry = _Pending(work, item, len(item.scores) + len(item.generations))
            for key in [request.key for request in item.scores] + [request.key for request in item.generations]:
                if key in waiting:
                    raise ValueError(f"two requests of the {work.probe.name} probe have the same key {key!r}")
                waiting[key] = entry
            if not entry.missing:
                yield work, item, ItemResults()
    scores = [request for _, item in items for request in item.scores]
    generations = [request for _, item in items for request in item.generations]
    asked_keys = [request.key for request in scores] + [request.key for request in generations]
    known = frozenset(key for key in asked_keys if key not in waiting)
    for result in with_retry(partial(engine.score, known=known), scores, retried):
        yield from _complete(waiting.pop(result.request.key), result)
    for answer in with_retry(partial(engine.generate, known=known), generations, retried):
        yield from _complete(waiting.pop(answer.request.key), answer)
    if waiting:
        raise EngineError(f"The engine gave no result for {len(waiting)} requests, {next(iter(waiting))!r} first.")


def with_retry(
    call: Callable[[Sequence[Any]], Iterator[Any]], requests: Sequence[Any], retried: Retried | None = None
) -> Iterator[Any]:
    """Results of `call`; errored ones are asked for again after each of `RETRY_DELAYS_SECONDS`, then the error stands.

    What no second asking would change (a request that does not fit the context) is not asked for again. `retried` is
    called before each further asking.
    """
    for delay in (*RETRY_DELAYS_SECONDS, None):
        again, why = [], ""
        for result in call(requests):
            if result.error is None or result.permanent or delay is None:
                yield result
            else:
                again.append(result.request)
                why = why or result.error
        if not again or delay is None:
            return
        if retried is not None:
            retried(len(again), why)
        pause(delay)
        requests = again


def _complete(entry: _Pending, result: Scored | Generated) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    if isinstance(result, Scored):
        entry.scored[result.request.key] = result
    else:
        entry.generated[result.request.key] = result
    entry.missing -= 1
    if entry.missing == 0:
        yield entry.work, entry.item, ItemResults(entry.scored, entry.generated)


def in_group(item: WorkItem, probe: str) -> WorkItem:
    """The item with its requests kept apart from other probes', stages', tasks' and blocks'; a probe may part further.

    So one probe alone gives what it gives among others, and one block what it gives among all.
    """
    group = _below(probe, item.stage)
    group = f"{group}/{item.task}/{item.block}" if item.task else group
    return replace(
        item,
        scores=tuple(replace(request, group=_below(group, request.group)) for request in item.scores),
        generations=tuple(replace(request, group=_below(group, request.group)) for request in item.generations),
    )


def in_block(item: WorkItem, block: int, probe: str) -> WorkItem:
    """An item that `in_group` kept apart, laid into another block: its requests go with the others of that block."""
    if item.block == block:
        return item
    stem = f"{_below(probe, item.stage)}/{item.task}"
    old, new = f"{stem}/{item.block}", f"{stem}/{block}"
    return replace(
        item,
        block=block,
        scores=tuple(replace(request, group=new + request.group.removeprefix(old)) for request in item.scores),
        generations=tuple(
            replace(request, group=new + request.group.removeprefix(old)) for request in item.generations
        ),
    )


def _below(group: str, own: str) -> str:
    return f"{group}/{own}" if own else group
