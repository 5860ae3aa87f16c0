"""What vLLM's page of counters (Prometheus' text format) tells: its prefix cache, its speculative decoding, its work.

Of several engines behind one address all is summed. What is not told, or cannot be read, is None and never zero.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """Counters of speculative decoding: how often it drafted, how many tokens, and how many of these were accepted."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        """Of the tokens drafted."""
        return self.drafted - self.accepted

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """What they rose by."""
        return DraftCounts(self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted)

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        return DraftCounts(self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted)


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
    return DraftCounts(**{name: int(total) for name, total in sums.items()})


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
