"""The weights of one parameter that are stored alike, as one stack: decoded together into their places.

The experts of a layer are thousands of small weights. Decoded one by one they take as many times the kernels that one
takes; stacked, in the order of the parameter's rows, a few. The bits are those of each weight alone.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from q36eval.checkpoints.formats.stacked import decode_stacked
from q36eval.checkpoints.gpu import has_triton
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.stored_groups import READERS, Parts, read_alike, stored_as
from q36eval.checkpoints.weights import LogicalWeight, all_finite, decode_parts

Place = tuple[int, slice] | None
"""The expert and the rows of a fused parameter; None for all of it."""


@dataclass(frozen=True)
class _Fp4:
    """The parts of a format with FP4 values under FP8 scales under one float32 scale a weight."""

    values: str
    scale: str
    whole: str
    divides: bool


FP4 = {
    "nvfp4-pack-quantized": _Fp4("weight_packed", "weight_scale", "weight_global_scale", divides=True),
    "modelopt-nvfp4": _Fp4("weight", "weight_scale", "weight_scale_2", divides=False),
}


@dataclass(frozen=True)
class Stack:
    """Weights that are stored alike and their places in one parameter, in the order of its rows."""

    places: tuple[Place, ...]
    weights: tuple[LogicalWeight, ...]

    @property
    def scheme(self) -> Scheme:
        """How they are stored."""
        return self.weights[0].scheme

    @cached_property
    def stored_bytes(self) -> int:
        """What it takes in the files."""
        return sum(weight.stored_bytes for weight in self.weights)

    def read(self, *, pinned: bool) -> Parts:
        """Its parts; raises as `read_alike`."""
        return read_alike(self.weights, pinned=pinned)


def stacks_of(placed: Sequence[tuple[Place, LogicalWeight]]) -> list[Stack]:
    """All weights of one parameter."""
    alike: dict[Hashable, list[tuple[Place, LogicalWeight]]] = defaultdict(list)
    for place, weight in sorted(placed, key=lambda one: _order(one[0])):
        alike[stored_as(weight)].append((place, weight))
    return [
        Stack(tuple(place for place, _ in members), tuple(weight for _, weight in members))
        for members in alike.values()
    ]


Stored = Generator[tuple[Stack, Callable[[], Parts]], None, None]


def read_ahead(stacks: Sequence[Stack], budget: int, *, pinned: bool) -> Stored:
    """Every stack with what waits for its parts, in order; threads read the next ones in the meantime.

    What lies in host memory beside the stack in work stays under `budget` bytes. A stack larger than that is read when
    its turn comes.
    """
    waiting: deque[tuple[Stack, Future[Parts]]] = deque()
    left, ahead = deque(stacks), 0
    with ThreadPoolExecutor(READERS, thread_name_prefix="read-ahead") as readers:

        def submit() -> int:
            taken = 0
            while left and ahead + taken + left[0].stored_bytes <= budget:
                stack = left.popleft()
                waiting.append((stack, readers.submit(stack.read, pinned=pinned)))
                taken += stack.stored_bytes
            return taken

        try:
            ahead += submit()
            while waiting or left:
                if not waiting:
                    stack = left.popleft()
                    yield stack, partial(stack.read, pinned=pinned)
                    ahead += submit()
                    continue
                stack, under_way = waiting.popleft()
                ahead -= stack.stored_bytes
                ahead += submit()  # read while this one is worked on
                yield stack, under_way.result
                del under_way  # or its bytes stay while the next one is worked on
        finally:
            for _, later in waiting:
                later.cancel()


def _order(place: Place) -> tuple[int, int]:
    return (0, 0) if place is None else (place[0], place[1].start or 0)


def covers(places: Sequence[Place], shape: torch.Size) -> bool:
    """Whether these places, in their order, are the whole parameter, row after row."""
    if places[0] is None:
        return True
    rows = [range(shape[1])[place[1]] for place in places if place is not None]
    if len(rows) * len(rows[0]) != shape[0] * shape[1]:
        return False
    begins = (place[0] * shape[1] + own.start for place, own in zip(places, rows, strict=True) if place is not None)
    return all(begin == at * len(rows[0]) for at, begin in enumerate(begins))


def decode_stack(
    parts: Parts, scheme: Scheme, places: Sequence[Place], target: Tensor, at_once: int, in_order: bool
) -> None:
    """Decode parts that are known to fit, and that `can_be_stacked`, into their places of the parameter `target`.

    About `at_once` values at a time, rounded once to the target's dtype; `in_order` is what `covers` says of them.
    """
    if in_order and scheme.format in FP4 and target.is_cuda and has_triton():
        _decode_fp4(parts, FP4[scheme.format], target)
        return
    values = _at(target, places[0]).numel()
    if len(places) == 1 or values > at_once:
        decode_each(parts, scheme, places, target)
        return
    step = max(at_once // max(values, 1), 1)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        decoded = decode_stacked({part: tensor[start : start + step] for part, tensor in parts.items()}, scheme)
        if in_order:
            target.view(len(places), -1)[start : start + step].copy_(decoded.reshape(len(some), -1))
            continue
        for place, weight in zip(some, decoded, strict=True):
            _at(target, place).copy_(weight)


def decode_each(parts: Parts, scheme: Scheme, places: Sequence[Place], target: Tensor) -> None:
    """The same, weight by weight."""
    for at, place in enumerate(places):
        decode_parts({part: tensor[at] for part, tensor in parts.items()}, scheme, _at(target, place))


def finite_each(places: Sequence[Place], target: Tensor) -> Tensor:
    """Whether all values are finite of each of these places [weights], on the target's device."""
    if len(places) == 1 or not covers(places, target.shape):
        return torch.stack([all_finite(_at(target, place)) for place in places])
    weights = target.view(len(places), -1)  # a NaN is an extreme to torch
    return torch.isfinite(weights.amax(1)) & torch.isfinite(weights.amin(1))


def _at(target: Tensor, place: Place) -> Tensor:
    return target if place is None else target[place[0], place[1]]


def fp4_rows(parts: Mapping[str, Tensor], scheme: Scheme) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Values and scales row by row, the scales of whole weights, and whether those divide."""
    names = FP4[scheme.format]
    values, scales = (parts[name].flatten(0, 1) for name in (names.values, names.scale))
    return values, scales, parts[names.whole].reshape(-1), names.divides


def _decode_fp4(parts: Parts, names: _Fp4, target: Tensor) -> None:
    from q36eval.checkpoints._quantization_kernels import decode_fp4_rows

    values, wholes = parts[names.values], parts[names.whole].reshape(-1)
    count, block = target.numel(), 4096
    decode_fp4_rows[(-(-count // block),)](
        values,
        parts[names.scale],
        wholes,
        target,
        count,
        width=target.shape[-1],
        height=values.shape[1],
        divides=names.divides,
        rounds=names.divides,
        block=block,
    )
