"""Which requests are computed together: similar length, one group, and a shared prefix where that pays."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from q36eval.engines.base import GenerationRequest, ScoreRequest

RequestT = TypeVar("RequestT", ScoreRequest, GenerationRequest)

SCORE_BATCH_TOKENS = 4096
GENERATE_BATCH_TOKENS = 16384
GENERATE_BATCH_ROWS = 192

CHUNK_TOKENS = 64
"""Gated DeltaNet works in chunks of so many tokens. A prefix that ends with one leaves those of the rest where they
were, and in BF16 nearly every state comes out bit for bit as without sharing; one that ends elsewhere moves all."""

WORTH_SHARING = 768
"""A prefix is computed apart where that spares so many tokens: what is less is eaten up by the additional passes."""

ATTENDED_TOKENS = 16
"""Rows of a batch and the prefix before each may come to so many times the tokens of a batch: what attention holds."""


def prefix_of(request: ScoreRequest) -> tuple[int, ...]:
    """The leading tokens a request shares, as far as they are computed apart: whole chunks.

    The position that predicts token `first` is among those asked for, so it always belongs to the rest.
    """
    usable = max(0, min(request.shared, request.first - 1))
    return request.token_ids[: usable - usable % CHUNK_TOKENS]


def scoring_batches(
    requests: Iterable[ScoreRequest], max_tokens: int = SCORE_BATCH_TOKENS
) -> Iterator[list[ScoreRequest]]:
    """Batches of one group and, where it pays, of one prefix, which no row's length counts.

    What shares none comes first, in `batches_by_length`. All batches of a prefix follow one another. Order and
    composition depend on content alone.
    """
    asked = list(requests)
    prefixes = {request.key: prefix_of(request) for request in asked}
    sharing = Counter((request.group, prefixes[request.key]) for request in asked)

    def shared(request: ScoreRequest) -> tuple[int, ...]:
        prefix = prefixes[request.key]
        return prefix if (sharing[request.group, prefix] - 1) * len(prefix) >= WORTH_SHARING else ()

    ordered = sorted(asked, key=lambda request: (request.group, shared(request)))
    for (_, prefix), members in groupby(ordered, key=lambda request: (request.group, shared(request))):
        yield from _of_one_prefix(list(members), len(prefix), max_tokens)


def _of_one_prefix(requests: list[ScoreRequest], prefix: int, max_tokens: int) -> Iterator[list[ScoreRequest]]:
    if not prefix:
        yield from batches_by_length(requests, max_tokens)
        return
    widest = max(len(request.token_ids) for request in requests)
    rows = max(1, min(max_tokens // (widest - prefix), ATTENDED_TOKENS * max_tokens // widest))
    yield from batches_by_length(requests, rows * widest, rows)


def batches_by_length(
    requests: Iterable[RequestT], max_tokens: int, max_rows: int | None = None
) -> Iterator[list[RequestT]]:
    """Batches of one group and similar length, longest first, each padded to at most `max_tokens`.

    Order depends on content alone.
    """
    ordered = sorted(requests, key=lambda r: (r.group, -len(r.token_ids), r.token_ids, r.key))
    batch: list[RequestT] = []
    for request in ordered:
        width = len(batch[0].token_ids) if batch else len(request.token_ids)
        full = batch and ((len(batch) + 1) * width > max_tokens or len(batch) == max_rows)
        if full or (batch and batch[0].group != request.group):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def with_news(batches: Iterable[list[RequestT]], known: Collection[str]) -> Iterator[list[RequestT]]:
    """The batches that hold a request whose key is not `known`: each is computed whole, or not at all."""
    return (batch for batch in batches if any(request.key not in known for request in batch))
