"""Units of work: the batches that travel to a worker together."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from q36eval.engines.base import Batch
from q36eval.engines.shared_prefix import common_prefix

UNIT_BATCHES = 4
"""Batches after one prefix that a worker gets at once, at most: it computes their prefix once. What shares none travels
alone. That a prefix is computed by several workers changes nothing: its tokens and passes are the same."""


def in_units(batches: Sequence[Batch]) -> Iterator[list[int]]:
    """Places of the batches that go together, in order."""
    for shared, members in groupby(range(len(batches)), key=lambda place: _shared(batches[place])):
        places = list(members)
        size = UNIT_BATCHES if shared else 1
        yield from (places[at : at + size] for at in range(0, len(places), size))


def _shared(batch: Batch) -> tuple[str, tuple[int, ...]] | None:
    """The group and the prefix that all rows of a batch may be computed after."""
    prefix = common_prefix(batch)
    return (batch[0].group, prefix) if prefix else None
