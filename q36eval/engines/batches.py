"""Composition of batches: similar length, one group, and a shared prefix if that saves time."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any, TypeVar

from q36eval.engines.base import Batch, Divided, Engine, Generated, GenerationRequest, Request, Scored, ScoreRequest
from q36eval.engines.memory_plan import (
    ATTENDED_TOKENS,
    CHUNK_TOKENS,
    GENERATE_BATCH_ROWS,
    GENERATE_BATCH_TOKENS,
    WORTH_SHARING,
)

RequestT = TypeVar("RequestT", ScoreRequest, GenerationRequest)
ResultT = TypeVar("ResultT", Scored, Generated)

RowsOf = Callable[[int, int], int]
"""The maximum number of rows of a batch, by the maximum tokens of its prompts and of its answers."""

SCORE_BATCH_TOKENS = 4096

ANSWER_TOKENS = 128
"""An answer of the sandbox costs about as much as this many prompt tokens."""

WORTH_SHARING_ANSWERS = 4096
"""As `WORTH_SHARING` for generation: another batch costs as many steps as its longest answer has tokens."""

SHORT_BUDGET = 1024
"""Budgets up to this share a batch: the memory of such answers is small compared with a row's other memory."""

MAX_SPREAD = 64
"""Prompts after one prefix differ by at most this many tokens: each costs the longest prompt a step."""


def prefix_of(request: ScoreRequest | GenerationRequest) -> tuple[int, ...]:
    """The shared leading tokens of a request that are computed separately: whole chunks.

    The position that predicts the first requested token always belongs to the rest.
    """
    first = request.first if isinstance(request, ScoreRequest) else len(request.token_ids)
    usable = max(0, min(request.shared, first - 1))
    return request.token_ids[: usable - usable % CHUNK_TOKENS]


def scoring_batches(
    requests: Iterable[ScoreRequest], max_tokens: int = SCORE_BATCH_TOKENS, worth: int = WORTH_SHARING
) -> Iterator[list[ScoreRequest]]:
    """Batches of one group and, if it saves `worth` tokens, of one prefix, which does not count in a row's length.

    Requests without a prefix come first, in `batches_by_length`. All batches of a prefix are consecutive. Order and
    composition depend on content alone.
    """
    for prefix, members in _by_prefix(requests, worth):
        if prefix:
            widest = max(len(request.token_ids) for request in members)
            rows = max(1, min(max_tokens // (widest - prefix), ATTENDED_TOKENS * max_tokens // widest))
            yield from batches_by_length(members, rows * widest, rows)
        else:
            yield from batches_by_length(members, max_tokens)


def generation_batches(
    requests: Iterable[GenerationRequest],
    max_tokens: int = GENERATE_BATCH_TOKENS,
    max_rows: int = GENERATE_BATCH_ROWS,
    rows_of: RowsOf | None = None,
) -> Iterator[list[GenerationRequest]]:
    """As `scoring_batches`, for answers; rows after one prefix have nearly equal lengths, since they are not padded.

    With `rows_of`, a plan of memory, the prompts and budgets of a batch limit its rows. If two prompts do not fit one
    pass, they are read in several, and have nearly equal lengths, too.
    """
    for prefix, members in _by_prefix(requests, WORTH_SHARING_ANSWERS):
        if prefix:
            widest = max(len(request.token_ids) for request in members)
            attended = ATTENDED_TOKENS * SCORE_BATCH_TOKENS if rows_of is None else max_rows * widest
            # a prefix needs at least two rows to be worth its pass
            held = max(2, min(max_tokens // (widest - prefix), attended // widest))
            rows = min(max_rows, held)
            yield from batches_by_length(members, rows * widest, rows, MAX_SPREAD, rows_of)
        else:
            long = [] if rows_of is None else [each for each in members if 2 * len(each.token_ids) > max_tokens]
            rest = [each for each in members if 2 * len(each.token_ids) <= max_tokens] if long else members
            batches = [*batches_by_length(rest, max_tokens, max_rows, None, rows_of)]
            if long:
                widest = max(len(request.token_ids) for request in long)
                batches += batches_by_length(long, max_rows * widest, max_rows, MAX_SPREAD, rows_of)
            # the costliest first, so that workers end together
            yield from sorted(batches, key=lambda b: len(b) * (len(b[0].token_ids) + ANSWER_TOKENS), reverse=True)


def _by_prefix(requests: Iterable[RequestT], worth: int) -> Iterator[tuple[int, list[RequestT]]]:
    """The requests of each group and prefix, and the prefix's length; 0 if it saves less than `worth` tokens."""
    requests = list(requests)
    prefixes = {request.key: prefix_of(request) for request in requests}
    sharing = Counter((request.group, prefixes[request.key]) for request in requests)

    def shared(request: RequestT) -> tuple[str, tuple[int, ...]]:
        prefix = prefixes[request.key]
        spared = (sharing[request.group, prefix] - 1) * len(prefix)
        return request.group, prefix if spared >= worth else ()

    for (_, prefix), members in groupby(sorted(requests, key=shared), key=shared):
        yield len(prefix), list(members)


def batches_by_length(
    requests: Iterable[RequestT],
    max_tokens: int,
    max_rows: int | None = None,
    max_spread: int | None = None,
    rows_of: RowsOf | None = None,
) -> Iterator[list[RequestT]]:
    """Batches of one group and similar length, longest first, each padded to at most `max_tokens`.

    The lengths of a batch lie within `max_spread`, and it has no more rows than `rows_of` its longest prompt and its
    largest budget. Order depends on content alone.

    With `rows_of` long budgets are separate from short ones: memory is reserved for the whole budget, so one of 8,192
    leaves room for a third of the rows, and all of them take as many steps as its answer.
    """

    def lasting(request: RequestT) -> int:
        """The power of two of a long budget; 0 if budgets are ignored."""
        longer = 0 if rows_of is None else -(-_budget(request) // SHORT_BUDGET) - 1
        return max(0, longer).bit_length()

    def is_full(batch: list[RequestT], request: RequestT) -> bool:
        width = len(batch[0].token_ids)
        if (len(batch) + 1) * width > max_tokens or len(batch) == max_rows:
            return True
        if rows_of is not None and len(batch) >= rows_of(width, max(_budget(request), *map(_budget, batch))):
            return True
        apart = max_spread is not None and width - len(request.token_ids) > max_spread
        return apart or lasting(batch[0]) != lasting(request)

    ordered = sorted(requests, key=lambda r: (r.group, -lasting(r), -len(r.token_ids), r.token_ids, r.key))
    return in_order(ordered, is_full)


def in_order(
    requests: Iterable[RequestT], is_full: Callable[[list[RequestT], RequestT], bool]
) -> Iterator[list[RequestT]]:
    """Batches of one group each of the requests in order; a batch ends if it `is_full` for the next one."""
    batch: list[RequestT] = []
    for request in requests:
        if batch and (batch[0].group != request.group or is_full(batch, request)):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def _budget(request: ScoreRequest | GenerationRequest) -> int:
    return request.max_new_tokens if isinstance(request, GenerationRequest) else 0


def common_prefixes(sequences: Sequence[Sequence[int]]) -> list[int]:
    """For each sequence, the number of its leading tokens worth computing once for it and others of the list.

    Whole chunks, for a request's `shared`. If many share a few chunks and few of these share many, it is the length
    that saves a sequence the most: L tokens common to n sequences save each (n - 1) / n of L.
    """
    chains = [_chunk_chain(sequence) for sequence in sequences]
    having = Counter(link for chain in chains for link in chain)

    def spared(chain: list[int], chunks: int) -> float:
        return chunks * (1 - 1 / having[chain[chunks - 1]]) if chunks else 0.0

    return [CHUNK_TOKENS * max(range(len(chain) + 1), key=partial(spared, chain)) for chain in chains]


def _chunk_chain(sequence: Sequence[int]) -> list[int]:
    """A hash of everything up to the end of each whole chunk: equal if the sequences are equal up to there."""
    ends = range(CHUNK_TOKENS, len(sequence) + 1, CHUNK_TOKENS)
    chunks = (tuple(sequence[end - CHUNK_TOKENS : end]) for end in ends)
    return list(accumulate(chunks, lambda before, chunk: hash((before, chunk)), initial=0))[1:]


def with_news(batches: Iterable[Batch], known: Collection[str]) -> Iterator[Any]:
    """The batches with at least one request whose key is not `known`: all rows of each are computed, or none."""
    for batch in batches:
        if any(request.key not in known for request in batch):
            yield [_filling(request) if request.key in known else request for request in batch]


def _filling(request: Request) -> Request:
    return replace(request, needed=False) if isinstance(request, GenerationRequest) else request


class BatchedEngine(Engine):
    """One that forms its batches from the whole list of requests, so that several may share the work."""

    @abstractmethod
    def divided(self, requests: Sequence[Request]) -> Divided:
        """The batches of `score` or `generate` of these requests, all of one kind, known ones included, in order.

        They depend on the list alone, and a batch has the same numbers in every engine of this deployment.
        """

    @abstractmethod
    def computed(self, batches: Sequence[Batch]) -> Iterator[list[Any]]:
        """The results of each batch of `divided`, in order, each result in the place of its request."""

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        return self._evaluated(requests, known)

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        return self._evaluated(requests, known)

    def _evaluated(self, requests: Sequence[Request], known: Collection[str]) -> Iterator[Any]:
        if all(request.key in known for request in requests):
            return
        divided = self.divided(requests)
        yield from (each for each in divided.refused if each.request.key not in known)
        for results in self.computed([*with_news(divided.batches, known)]):
            yield from new_results(results, known)


def shared_out(results: list[ResultT], seconds: float) -> list[ResultT]:
    """The results with their shares of a batch's `seconds`, by the tokens that each read and answered."""
    tokens = [_tokens(result) for result in results]
    return [replace(result, seconds=seconds * n / sum(tokens)) for result, n in zip(results, tokens, strict=True)]


def new_results(results: list[ResultT], known: Collection[str]) -> Iterator[ResultT]:
    """The results of a batch that are not `known`; the first one carries the time of the repeated others."""
    repeated = sum(result.seconds for result in results if result.request.key in known)
    for result in results:
        if result.request.key not in known:
            yield replace(result, repeated_seconds=repeated) if repeated else result
            repeated = 0.0


def _tokens(result: Scored | Generated) -> int:
    read = len(result.request.token_ids)
    return read + len(result.token_ids) if isinstance(result, Generated) else read
