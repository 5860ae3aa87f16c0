"""vLLM's page of counters (Prometheus' text format): its prefix cache, its speculative decoding, its work.

Counters of several engines behind one address are summed. A missing or unreadable value is None and never zero.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COUNTERS = {
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
}
"""Tokens looked up in the prefix cache, and found there, since the server's start."""
PROMPTS = {"tokens": "(vllm|sglang):prompt_tokens_total"}
"""Tokens of all prompts since the server's start."""
CACHE = "vllm:cache_config_info{"
DRAFTS = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
"""Counters of speculative decoding; a vLLM without it has no such lines."""


@dataclass(frozen=True)
class CacheState:
    """Counters of the prefix cache, in tokens, and the capacity of the KV cache in tokens; None if not reported."""

    queries: float
    hits: float
    capacity: int | None
    block: int | None = None
    """Tokens of one block; only whole blocks are cached."""


@dataclass(frozen=True)
class DraftCounts:
    """Counters of speculative decoding: number of drafts, drafted tokens, and accepted tokens."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        """The rejected ones of the drafted tokens."""
        return self.drafted - self.accepted

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """The increase since `before`."""
        return DraftCounts(self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted)

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        return DraftCounts(self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted)


def cache_state_of(lines: Sequence[str]) -> CacheState | None:
    """The prefix cache's state; the capacity is known if each engine reports its own."""
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
    """The number of prompt tokens received so far; SGLang reports it, too."""
    sums = _sums(lines, PROMPTS)
    return None if sums is None else sums["tokens"]


def draft_counts_of(lines: Sequence[str]) -> DraftCounts | None:
    """The counters of speculative decoding."""
    sums = _sums(lines, DRAFTS)
    if sums is None:
        return None
    return DraftCounts(**{name: int(total) for name, total in sums.items()})


def _sums(lines: Sequence[str], names: Mapping[str, str]) -> dict[str, float] | None:
    """The sum of each counter, matched by its name's pattern, over all its lines; None if one has no line."""
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
    return int(value) if value.isdecimal() and len(value) < 20 else None
