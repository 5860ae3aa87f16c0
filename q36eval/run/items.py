"""Asks an engine for everything that work items need, and hands out each item with all its results.

All that the probes want scored is handed to the engine as one plan, and likewise all that must be generated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from q36eval.engines.base import Engine, Generated, Scored
from q36eval.engines.retrying import Retried, with_retry
from q36eval.errors import EngineError
from q36eval.probes import ItemResults, Probe, WorkItem

Round = tuple[str, int]
"""A stage and a block of it."""


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


def _complete(entry: _Pending, result: Scored | Generated) -> Iterator[tuple[Work, WorkItem, ItemResults]]:
    if isinstance(result, Scored):
        entry.scored[result.request.key] = result
    else:
        entry.generated[result.request.key] = result
    entry.missing -= 1
    if entry.missing == 0:
        yield entry.work, entry.item, ItemResults(entry.scored, entry.generated)
