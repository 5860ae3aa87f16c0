"""What vLLM's page of counters (Prometheus' text format) tells: its prefix cache, its speculative decoding, its work.

Of several engines behind one address all is summed. What is not told, or cannot be read, is None and never zero.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

COUNTERS = {
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
}
"""Tokens that were looked up in the prefix cache, and found there, since the server's start."""
PROMPTS = {"tokens": "(vllm|sglang):prompt_tokens_total"}
"""Tokens of all prompts since the server's start."""
CACHE = "vllm:cache_config_info{"
DRAFTS = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
"""Counters of speculative decoding; a vLLM that does none has no such line."""
ACCEPTED_BY_PLACE = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
ACCEPTED_AT = ACCEPTED_BY_PLACE + r'\{[^}]*position="(\d+)"'


@dataclass(frozen=True)
class CacheState:
    """Counters of the prefix cache, in tokens, and how many tokens the KV cache holds; None where it is not told."""

    queries: float
    hits: float
    capacity: int | None
    block: int | None = None
    """Tokens of one block, of which whole ones are cached."""


@dataclass(frozen=True)
class DraftCounts:
    """Counters of speculative decoding: how often it drafted, how many tokens, and how many of these were accepted.

    `by_place` is how many were accepted as the first, the second and so on of a draft; () where that is not told.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_place: tuple[int, ...] = ()

    @property
    def rejected(self) -> int:
        """Of the tokens drafted."""
        return self.drafted - self.accepted

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """What they rose by."""
        return self._with(before, -1)

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        return self._with(other, 1)

    def _with(self, other: "DraftCounts", sign: int) -> "DraftCounts":
        places = zip_longest(self.by_place, other.by_place, fillvalue=0)
        return DraftCounts(
            self.drafts + sign * other.drafts,
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            tuple(one + sign * two for one, two in places),
        )


def cache_state_of(lines: Sequence[str]) -> CacheState | None:
    """The prefix cache's; a capacity is known where each engine tells its own."""
    sums = _sums(lines, COUNTERS)
    if sums is None:
        return None
    engines = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines if line.startswith(CACHE)]
    sizes = [_capacity(labels) for labels in engines]
    known = [size for size in sizes if size is not None]
    block = _whole(engines[0], "block_size") if engines else None
    capacity = sum(known) if known and len(known) == len(sizes) else None
    return CacheState(sums["queries"], sums["hits"], capacity, block)


def prompt_tokens_of(lines: Sequence[str]) -> float | None:
    """How many tokens of prompts it was sent so far; SGLang tells that too."""
    sums = _sums(lines, PROMPTS)
    return None if sums is None else sums["tokens"]


def draft_counts_of(lines: Sequence[str]) -> DraftCounts | None:
    """Those of speculative decoding."""
    sums = _sums(lines, DRAFTS)
    if sums is None:
        return None
    places = sorted({int(each) for line in lines for each in re.findall(ACCEPTED_AT, line)})
    at_places = _sums(lines, {str(at): f'{ACCEPTED_BY_PLACE}{{[^}}]*position="{at}"' for at in places})
    by_place = () if at_places is None else tuple(int(at_places[str(at)]) for at in places)
    return DraftCounts(**{name: int(total) for name, total in sums.items()}, by_place=by_place)


def _sums(lines: Sequence[str], names: Mapping[str, str]) -> dict[str, float] | None:
    """Of each counter, by its name's pattern, the sum over all lines that are its own; None where one has none."""
    sums = {}
    for what, name in names.items():
        own = [line.rpartition(" ")[2] for line in lines if re.match(name + r"(?![\w:])", line)]
        try:
            values = [float(value) for value in own]
        except ValueError:
            return None
        if not values or not all(map(math.isfinite, values)):
            return None
        sums[what] = sum(values)
    return sums


def _capacity(labels: Mapping[str, str]) -> int | None:
    """Tokens that one engine's cache holds."""
    block, blocks, size = (_whole(labels, name) for name in ("block_size", "num_gpu_blocks", "kv_cache_size_tokens"))
    return block * blocks if size is None and block is not None and blocks is not None else size


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdecimal() else None
