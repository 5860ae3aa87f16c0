"""The order in which a task's items are asked: seeded, every stratum at its own share, in blocks that end in a look."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def in_blocks(strata: Mapping[K, str], clusters: Mapping[K, str], block_items: int, seed: str) -> list[list[K]]:
    """The keys of `strata` (key -> stratum) in blocks of about `block_items`, none smaller than half of that.

    Keys of one cluster (`clusters`: key -> cluster) stay together: a look must never see half of one. Every prefix of
    the order holds each stratum in proportion to its size (rounded), so that a block's mean has the mean of the whole
    population as its expectation. The order depends on the seed and the names alone, never on the order of the keys.

    Raises:
        ValueError: `block_items` is not positive.
    """
    if block_items < 1:
        raise ValueError(f"a block holds at least one item, not {block_items}")
    members = members_of(strata, clusters)
    order = _interleaved(_by_stratum(members, strata), seed)
    blocks: list[list[K]] = [[]]
    for cluster in order:
        if len(blocks[-1]) >= block_items:
            blocks.append([])
        blocks[-1] += members[cluster]
    if len(blocks) > 1 and len(blocks[-1]) < block_items / 2:
        last = blocks.pop()
        blocks[-1] += last
    return blocks if blocks[0] else []


def interleaved(strata: Mapping[K, str], clusters: Mapping[K, str], seed: str) -> list[str]:
    """The clusters of the keys in such an order, without blocks."""
    return _interleaved(_by_stratum(members_of(strata, clusters), strata), seed)


def members_of(strata: Mapping[K, str], clusters: Mapping[K, str]) -> dict[str, list[K]]:
    """The keys of each cluster, whatever their order was."""
    members: dict[str, list[K]] = {}
    for key in sorted(strata, key=str):
        members.setdefault(clusters[key], []).append(key)
    return members


def _by_stratum(members: Mapping[str, Sequence[K]], strata: Mapping[K, str]) -> dict[str, list[str]]:
    """Stratum -> its clusters; those that lie in the same several strata are a stratum of their own."""
    found: dict[str, list[str]] = {}
    for cluster, keys in members.items():
        names = sorted({strata[key] for key in keys})
        found.setdefault("+".join(names), []).append(cluster)
    return found


def _interleaved(by_stratum: Mapping[str, Sequence[str]], seed: str) -> list[str]:
    """All clusters: the i-th of n of its stratum, in seeded order, stands at (i + u) / n, with u a seeded share."""
    placed = []
    for stratum, clusters in by_stratum.items():
        offset = _uniform(f"{seed}\0stratum\0{stratum}")
        shuffled = sorted(clusters, key=lambda cluster: _uniform(f"{seed}\0cluster\0{cluster}"))
        placed += [((i + offset) / len(shuffled), cluster) for i, cluster in enumerate(shuffled)]
    return [cluster for _, cluster in sorted(placed)]


def _uniform(text: str) -> float:
    """In [0, 1), from a hash: the same on every machine and in every version of Python."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56
