"""Results as they travel: without their requests, and with all hidden states of a unit in one array.

Ray keeps an array in shared memory, where its reader sees it without a copy; tensors it would pickle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from q36eval.engines.base import Batch, GenerationRequest, Result, Scored, ScoreRequest

_NO_SCORE, _NO_PROMPT = ScoreRequest("", (0, 0)), GenerationRequest("", (0,), 0)


@dataclass(frozen=True)
class Packed:
    """Results of a unit's batches; `rows[b][r]` is how many of the `states` [T, H] are that result's, -1: none."""

    results: tuple[tuple[Result, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    states: "np.ndarray[Any, Any] | None"
    dtype: str


def packed(batches: Sequence[Sequence[Result]]) -> Packed:
    """For the journey; states leave the device here."""
    tensors = [r.hidden_states for batch in batches for r in batch if isinstance(r, Scored)]
    states = [each for each in tensors if each is not None]
    joined = torch.cat(states).contiguous().cpu() if states else None
    bare = tuple(tuple(_bare(result) for result in batch) for batch in batches)
    rows = tuple(tuple(_rows(result) for result in batch) for batch in batches)
    if joined is None:
        return Packed(bare, rows, None, "")
    # BF16 is no type of numpy's: the bytes travel
    return Packed(bare, rows, joined.view(torch.uint8).numpy(), str(joined.dtype).removeprefix("torch."))


def unpacked(packed: Packed, batches: Sequence[Batch], device: "torch.device | str") -> Iterator[list[Result]]:
    """The results of each batch, with the requests that they are of and states on `device`."""
    begin = 0
    for batch, results, rows in zip(batches, packed.results, packed.rows, strict=True):
        whole: list[Result] = []
        for request, result, count in zip(batch, results, rows, strict=True):
            if count < 0:
                whole.append(replace(result, request=request))  # type: ignore[arg-type]
                continue
            assert packed.states is not None, "there are rows"
            copy = np.array(packed.states[begin : begin + count])  # the array goes when its unit is done with
            states = torch.from_numpy(copy).view(getattr(torch, packed.dtype)).to(device)
            whole.append(replace(result, request=request, hidden_states=states))  # type: ignore[arg-type]
            begin += count
        yield whole


def _bare(result: Result) -> Result:
    if isinstance(result, Scored):
        return replace(result, request=_NO_SCORE, hidden_states=None)
    return replace(result, request=_NO_PROMPT)


def _rows(result: Result) -> int:
    return -1 if not isinstance(result, Scored) or result.hidden_states is None else len(result.hidden_states)
