"""Weights that are stored alike, such as the experts of a layer, read together: one tensor for each of their parts.

A hundred thousand small tensors cost as many copies and kernels; the experts of a layer cost as many as one weight.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

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
ItemT = TypeVar("ItemT")
ReadT = TypeVar("ReadT")


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


def read_ahead(
    items: Sequence[ItemT],
    read: Callable[[ItemT], ReadT],
    size: Callable[[ItemT], int],
    budget: int,
    *,
    always_one: bool = True,
) -> Generator[tuple[ItemT, Callable[[], ReadT]], None, None]:
    """Every item with what waits for it to be read, in order; threads read the next ones in the meantime.

    What lies in host memory beside the item in work stays under `budget` bytes. An item larger than that is read ahead
    where it is the next, or, without `always_one`, when its turn comes.
    """
    waiting: deque[tuple[ItemT, Future[ReadT]]] = deque()
    left, ahead = deque(items), 0
    with ThreadPoolExecutor(READERS, thread_name_prefix="read-ahead") as readers:

        def submit() -> int:
            taken = 0
            while left and ((always_one and not waiting) or ahead + taken + size(left[0]) <= budget):
                item = left.popleft()
                waiting.append((item, readers.submit(read, item)))
                taken += size(item)
            return taken

        try:
            ahead += submit()
            while waiting or left:
                if not waiting:
                    item = left.popleft()
                    yield item, partial(read, item)
                    ahead += submit()
                    continue
                item, under_way = waiting.popleft()
                ahead -= size(item)
                ahead += submit()  # read while this one is worked on
                yield item, under_way.result
                del under_way  # or its bytes stay while the next one is worked on
        finally:
            for _, later in waiting:
                later.cancel()
