"""Weights that are stored alike, such as the experts of a layer, read together: one tensor for each of their parts.

A hundred thousand small tensors cost as many copies and kernels; the experts of a layer cost as many as one weight.
"""

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from q36eval.checkpoints.header import TORCH_DTYPES, TensorEntry
from q36eval.checkpoints.weights import LogicalWeight

READERS = 8
READ_BYTES = 2**26
"""A thread reads so many of a part's bytes at least: the experts of a layer in BF16 are 1.5 GiB, and one thread alone
takes longer to copy them from the system's cache than a GPU takes to compute with them."""
Parts = dict[str, Tensor]
"""Stored parts [weights, …]."""


def stored_as(weight: LogicalWeight) -> Hashable:
    """Equal for two weights whose parts can be read as one tensor each."""
    if not is_read_as_it_lies(weight):
        return weight.name
    parts = tuple((part, entry.dtype, entry.shape) for part, entry in weight.parts)
    return parts, weight.scheme.format, id(weight.scheme.compressed), repr(weight.scheme.settings)


def is_read_as_it_lies(weight: LogicalWeight) -> bool:
    """Whether its bytes in the file are those of its tensors; not so blocks of a GGUF, which are turned into rows."""
    return all(type(entry) is TensorEntry for _, entry in weight.parts)


def read_alike(weights: Sequence[LogicalWeight], *, pinned: bool) -> Parts:
    """The stored parts of weights that are stored alike, in host memory; page-locked for copies to a GPU.

    Raises:
        CorruptCheckpointError: a file ends early.
        EngineError: the system cannot read it.
    """
    if not weights:
        return {}
    if not is_read_as_it_lies(weights[0]):
        return {part: tensor.unsqueeze(0) for part, tensor in weights[0].read_parts().items()}
    parts: Parts = {}
    for place, (part, like) in enumerate(weights[0].parts):
        size = like.n_bytes
        buffer = _buffer(len(weights) * size, pinned=pinned)
        target = memoryview(buffer.numpy())  # type: ignore[arg-type]  # an array is a buffer
        _read_side_by_side([(weight, weight.parts[place][1]) for weight in weights], target, size)
        kind: torch.dtype = getattr(torch, TORCH_DTYPES[like.dtype])
        parts[part] = buffer.view(kind).reshape(len(weights), *like.shape)
    return parts


def _buffer(size: int, *, pinned: bool) -> Tensor:
    """Host memory; page-locked where that is asked for and there is any.

    Torch keeps what was locked for the next buffers of up to that size until `give_back_pinned`: locking takes longer
    than a copy, but the weights of one layer are as large as those of the next.
    """
    if pinned:
        with suppress(RuntimeError):  # more than may be locked: copies wait for the GPU then
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.empty(size, dtype=torch.uint8)


def give_back_pinned() -> None:
    """Page-locked host memory that nobody uses any more, which torch keeps to the end of the process, to the system."""
    for name in ("_accelerator_emptyHostCache", "_host_emptyCache"):  # as torch's versions call it
        if torch.cuda.is_initialized() and (empty := getattr(torch._C, name, None)) is not None:  # type: ignore[no-untyped-call]
            empty()
            return


def _read_side_by_side(entries: Sequence[tuple[LogicalWeight, TensorEntry]], target: memoryview, size: int) -> None:
    """Fill `target` with entries of `size` bytes each, one after another; by several threads where it is worth it."""

    def read(numbers: range) -> None:
        for at in numbers:
            weight, entry = entries[at]
            weight.checkpoint.read_into(entry, target[at * size : (at + 1) * size])

    each = max(-(-len(entries) // READERS), -(-READ_BYTES // max(1, size)))
    shares = [range(begin, min(begin + each, len(entries))) for begin in range(0, len(entries), each)]
    if len(shares) == 1:
        read(shares[0])
        return
    with ThreadPoolExecutor(len(shares), thread_name_prefix="read-alike") as threads:
        list(threads.map(read, shares))
