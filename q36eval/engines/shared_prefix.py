"""Long rows read in several passes; a prefix shared by many rows, computed once and lent to every row of a batch.

A pass continues from the caches of earlier ones, and ends with a whole chunk of Gated DeltaNet, so that later chunks
stay aligned. Keys and values are read from a cache instead of from the pass itself, under a mask: the order of sums
differs, and so do the last digits.

Attention layers cache keys and values (like a KV cache: quantized if the deployment's is), Gated DeltaNet layers a
recurrent state and the last inputs of their convolution. Scored rows only read these; rows continued token by token
have copies.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, cat
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

from q36eval.checkpoints.architecture import base_of
from q36eval.engines.base import GenerationRequest, Scored, ScoreRequest
from q36eval.engines.batches import MAX_SPREAD, prefix_of

Chunk = Callable[[int, int], int]
"""For numbers of rows and of tokens per row: the tokens per row that go through the model at a time."""


def spans(width: int, chunk: int) -> Iterator[slice]:
    """The columns of each pass over `width` columns, `chunk` at a time.

    A single last column joins the pass before it: transformers treats one token as a decoding step, with other kernels.
    """
    begin = 0
    while begin < width:
        end = width if width - begin <= chunk + 1 else begin + chunk
        yield slice(begin, end)
        begin = end


def read(model: Any, ids: Tensor, chunk: int, cache: Any = None) -> Tensor:
    """Final hidden states [R, W, H] of the token ids [R, W], whose rows begin together.

    `cache` holds the tokens before them, and then these, too; without one nothing precedes them.
    """
    if cache is None and chunk >= ids.shape[1]:
        states: Tensor = base_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        return states
    return cat(list(_passes(model, ids, chunk, cache)), dim=1)


def remember(model: Any, ids: Tensor, chunk: int, cache: Any = None) -> Any:
    """As `read`; returns the layers' caches, for continuations."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    for _ in _passes(model, ids, chunk, cache):
        pass
    return cache


def _passes(model: Any, ids: Tensor, chunk: int, cache: Any) -> Iterator[Tensor]:
    cache = DynamicCache(config=model.config) if cache is None else cache
    for span in spans(ids.shape[1], chunk):
        yield base_of(model)(input_ids=ids[:, span], past_key_values=cache, use_cache=True).last_hidden_state


def can_be_lent(model: Any) -> bool:
    """Whether the cache of every layer is independent of later tokens: a sliding window is not."""
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) in (DynamicLayer, LinearAttentionLayer) for layer in layers)


class LastPrefix:
    """A model's cache of the prefix that was read last.

    Batches that share a prefix are consecutive, so a process computes each prefix once. A model with exchanged modules
    needs a new object.
    """

    def __init__(self, model: Any, chunk: Chunk = lambda rows, width: width) -> None:
        self._model, self._chunk = model, chunk
        self._tokens: tuple[int, ...] = ()
        self._layers: list[Any] = []

    def cache(self, tokens: tuple[int, ...], rows: int) -> Cache:
        """A cache for the tokens that follow `tokens` in each of `rows` rows."""
        return Cache(layers=[lent(layer, rows) for layer in self._remembered(tokens)])

    def own_cache(self, tokens: tuple[int, ...], rows: int) -> Cache:
        """A cache as if `tokens` had just been read in each of `rows` rows, which may be modified."""
        return Cache(layers=[_copied(layer, rows) for layer in self._remembered(tokens)])

    def _remembered(self, tokens: tuple[int, ...]) -> list[Any]:
        if tokens != self._tokens:
            self._tokens, self._layers = (), []  # freed before the next one replaces it
            ids = torch.tensor([tokens], device=next(self._model.parameters()).device)
            self._layers = remember(self._model, ids, self._chunk(1, len(tokens))).layers
            self._tokens = tokens
        return self._layers


def common_prefix(batch: Sequence[ScoreRequest | GenerationRequest]) -> tuple[int, ...]:
    """The prefix that all requests of a batch declare as shared; empty without a common one."""
    first = prefix_of(batch[0])
    return first if len(batch) > 1 and all(prefix_of(request) == first for request in batch[1:]) else ()


def prefix_answered_after(batch: Sequence[GenerationRequest]) -> tuple[int, ...]:
    """`common_prefix`, if the prompts of a batch have nearly equal lengths: they are not padded after it."""
    lengths = [len(request.token_ids) for request in batch]
    return common_prefix(batch) if max(lengths) - min(lengths) <= MAX_SPREAD else ()


def rest_of(prefix: tuple[int, ...], batch: Sequence[ScoreRequest]) -> Tensor:
    """The part of every request that is computed after `prefix`: token ids [R, W], right-padded.

    The last token of a request predicts nothing requested and is left out.
    """
    rest = [request.token_ids[len(prefix) : -1] for request in batch]
    # transformers treats one new token as a decoding step, with other kernels, and writes to the lent states
    width = max(2, *(len(tokens) for tokens in rest))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    for row, tokens in enumerate(rest):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return ids


def scored_after(prefix: tuple[int, ...], batch: Sequence[ScoreRequest], hidden: Tensor) -> list[Scored]:
    """The results of a batch from the `hidden` states [R, W, H] of its rows after `prefix`."""
    return [
        Scored(request, hidden[row, request.first - 1 - len(prefix) : len(request.token_ids) - 1 - len(prefix)].clone())
        for row, request in enumerate(batch)
    ]


def score_after(model: Any, prefix: tuple[int, ...], batch: Sequence[ScoreRequest], last: LastPrefix) -> list[Scored]:
    """`Engine.score` of a batch whose requests all begin with `prefix`: only the rest is computed."""
    ids = rest_of(prefix, batch).to(next(model.parameters()).device)
    return scored_after(prefix, batch, read(model, ids, ids.shape[1], last.cache(prefix, len(batch))))


def lent(layer: Any, rows: int) -> Any:
    """A layer's cache of one row as that of `rows` rows, without copying it."""
    return _LentStates(layer, rows) if isinstance(layer, LinearAttentionLayer) else _LentKeys(layer, rows)


def _copied(layer: Any, rows: int) -> Any:
    """A layer's cache of one row, copied for each of `rows` rows."""
    copied = copy.copy(layer)
    for name, states in vars(layer).items():
        if isinstance(states, dict):
            setattr(copied, name, dict(states))
    copied.reorder_cache(torch.zeros(rows, dtype=torch.long))
    return copied


class _LentKeys(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keys and values [rows, heads, T, D] of a prefix, to which each pass adds its own."""

    def __init__(self, layer: Any, rows: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, True
        self.keys = layer.keys.expand(rows, -1, -1, -1)
        self.values = layer.values.expand(rows, -1, -1, -1)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([self.keys, key_states], dim=-2), torch.cat([self.values, value_states], dim=-2)


class _LentStates(LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent and convolution states of a prefix, as the start of every row."""

    reads_only = True
    """A continuation in several passes needs its own states."""

    def __init__(self, layer: Any, rows: int) -> None:
        super().__init__(number_of_states=layer.number_of_states)
        self._lender, self._rows = layer, rows
        self.has_previous_state = layer.has_previous_state
        self.conv_states = {at: state.expand(rows, -1, -1) for at, state in layer.conv_states.items()}
        self.recurrent_states = {
            at: s if s is None else s.expand(rows, *s.shape[1:]) for at, s in layer.recurrent_states.items()
        }

    def own(self) -> Any:
        """A copy that may be written to."""
        return _copied(self._lender, self._rows)

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return torch.cat([self.conv_states[state_idx], conv_states], dim=-1)

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return recurrent_states
