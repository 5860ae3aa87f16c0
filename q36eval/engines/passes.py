"""Long rows through the model in several passes, each of which goes on from what the layers remember of those before.

A pass ends with a whole chunk of Gated DeltaNet, so that the chunks of the next one are where they were. Keys and
values are read from a cache instead of from the pass itself, under a mask: sums of another order, and so are the last
digits.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, cat
from transformers import DynamicCache

from q36eval.checkpoints.architecture import base_of


def spans(width: int, chunk: int) -> Iterator[slice]:
    """The columns of each pass over `width` columns, `chunk` at a time.

    A last one alone goes with those before it: transformers takes one token for a step of decoding, by other kernels.
    """
    begin = 0
    while begin < width:
        end = width if width - begin <= chunk + 1 else begin + chunk
        yield slice(begin, end)
        begin = end


def read(model: Any, ids: Tensor, chunk: int, cache: Any = None) -> Tensor:
    """Final hidden states [R, W, H] of the token ids [R, W], whose rows begin together.

    `cache` remembers what stands before them, and then them too; without one nothing stands before them.
    """
    if cache is None and chunk >= ids.shape[1]:
        states: Tensor = base_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        return states
    return cat(list(_passes(model, ids, chunk, cache)), dim=1)


def remember(model: Any, ids: Tensor, chunk: int, cache: Any = None) -> Any:
    """As `read`; returns what the layers remember of it all, for whoever goes on from there."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    for _ in _passes(model, ids, chunk, cache):
        pass
    return cache


def _passes(model: Any, ids: Tensor, chunk: int, cache: Any) -> Iterator[Tensor]:
    cache = DynamicCache(config=model.config) if cache is None else cache
    for span in spans(ids.shape[1], chunk):
        yield base_of(model)(input_ids=ids[:, span], past_key_values=cache, use_cache=True).last_hidden_state
