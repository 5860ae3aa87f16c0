"""The pass over all weights: those that are stored alike are read, decoded, checked and compared together, on a device.

A stack is said to be sound or it is not: where anything about it has to be said, its weights are examined one by one on
the CPU (`error.examine`), so that every sentence is about one weight and has one origin. Host memory ahead of the work
stays under `READ_AHEAD_BYTES`, or one weight where that is larger.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats.stacked import can_be_stacked, decode_stacked, taller
from q36eval.checkpoints.inspection.comparison import SLAB, as_rows, block_height, compared, slabs
from q36eval.checkpoints.inspection.error import MALFORMED, Examined, Factors, Pass, examine, unquantized_difference
from q36eval.checkpoints.inspection.values import LOCAL_SCALES, erased_by_zero_scales, value_faults
from q36eval.checkpoints.stored_groups import (
    Parts,
    give_back_pinned,
    is_read_as_it_lies,
    read_ahead,
    read_alike,
    stored_as,
)
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import EngineError

READ_AHEAD_BYTES = 2**30
Read = Callable[[], tuple[Parts, Parts]]


class _NotSoundError(Exception):
    """Something has to be said of single weights."""


@dataclass(frozen=True)
class Stack:
    """Weights that are stored alike, and their references, which are too; none where there is none."""

    units: tuple[LogicalWeight, ...]
    references: tuple[LogicalWeight, ...]

    @property
    def stored_bytes(self) -> int:
        """What it takes in both checkpoints."""
        return sum(unit.stored_bytes for unit in (*self.units, *self.references))


def stacks_of(units: Sequence[LogicalWeight], how: Pass, device: str = "cpu") -> list[Stack]:
    """All weights, those of a layer that are alike together up to `SLAB` values; the largest weights come first, since
    whoever works on one of them alone is the last to end."""
    alike: dict[Hashable, list[LogicalWeight]] = defaultdict(list)
    for unit in units:
        alike[_key(unit, how)].append(unit)
    stacks = []
    for members in alike.values():
        values = members[0].stored_bytes * (1 if members[0].is_plain else 2)  # two to a byte at most
        count = max(SLAB[device] // max(values, 1), 1)
        for start in range(0, len(members), count):
            some = members[start : start + count]
            references = [how.reference[unit.name] for unit in some if unit.name in how.reference]
            stacks.append(Stack(tuple(some), tuple(references)))
    return sorted(stacks, key=lambda stack: stack.stored_bytes < READ_AHEAD_BYTES // 8)


def _key(unit: LogicalWeight, how: Pass) -> Hashable:
    """Equal for two weights that can be one stack."""
    reference, factors = how.reference.get(unit.name), how.factors.get(unit.name)
    both = (unit, *([reference] if reference is not None else []))
    scaled = None if factors is None else (factors.columns is None, factors.rows is None)
    layer = ".".join(unit.name.split(".")[:3])
    return (layer, *(stored_as(one) for one in both), how.expected.get(unit.name), scaled)


def examine_all(units: Sequence[LogicalWeight], how: Pass, workers: int, device: str = "cpu") -> list[Examined]:
    """Every weight examined, in their order: on a CPU by `workers` threads with one torch thread each, on a device by
    that while threads read.

    Raises:
        UsageError: the reference's weight cannot be decoded.
        EngineError: the memory of this machine does not suffice, or its disk gives errors.
    """
    workers = max(1, workers)
    kind = torch.device(device).type
    stacks = stacks_of(units, how, kind)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            if kind == "cpu":
                examined = list(pool.map(lambda stack: _examine_on_cpu(stack, how), stacks))
            else:
                examined = _examine_on_device(stacks, how, torch.device(device), pool)
    finally:
        torch.set_num_threads(before)
    by_name = {
        unit.name: one
        for stack, outcomes in zip(stacks, examined, strict=True)
        for unit, one in zip(stack.units, outcomes, strict=True)
    }
    return [by_name[unit.name] for unit in units]


def _examine_on_cpu(stack: Stack, how: Pass) -> list[Examined]:
    found = _sound(stack, lambda: read_both(stack), how, torch.device("cpu"))
    return [examine(unit, how) for unit in stack.units] if found is None else found


def _examine_on_device(
    stacks: Sequence[Stack], how: Pass, device: torch.device, pool: ThreadPoolExecutor
) -> list[list[Examined]]:
    """In order on the device; what is not sound one by one by the pool meanwhile."""
    outcomes: list[list[Examined] | list[Future[Examined]]] = []
    try:
        for stack, read in read_stacks_ahead(stacks, pinned=device.type == "cuda"):
            found = _sound(stack, read, how, device)
            del read  # or what it holds cannot be given back
            outcomes.append([pool.submit(examine, unit, how) for unit in stack.units] if found is None else found)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # whoever loads a model after this plans by what is free
            give_back_pinned()
    return [[one.result() if isinstance(one, Future) else one for one in outcome] for outcome in outcomes]


def _sound(stack: Stack, read: Read, how: Pass, device: torch.device) -> list[Examined] | None:
    """The stack examined; None where its weights have to be examined one by one, also for want of memory there."""
    if not all(is_read_as_it_lies(unit) for unit in (*stack.units, *stack.references)):
        return None
    if stack.units[0].is_plain and stack.units[0].name in how.factors:  # judged value by value
        return None
    try:
        return _examined(stack, *read(), how, device)
    except EngineError:  # the disk's trouble
        raise
    except (*MALFORMED, _NotSoundError):
        return None


def _examined(stack: Stack, stored: Parts, reference: Parts, how: Pass, device: torch.device) -> list[Examined]:
    first = stack.units[0]
    branch = _Rows(stack.units, stored, device)
    if how.expected.get(first.name, branch.shape) != branch.shape:
        raise _NotSoundError
    if not stack.references:
        rows, _ = as_rows(branch.shape)
        height = block_height(stack.units, rows)
        for start, stop in [(0, rows)] if len(stack.units) > 1 else slabs(branch.shape, device.type, height):
            branch.checked(start, stop)
        return [Examined(())] * len(stack.units)
    factors = [how.factors[unit.name] for unit in stack.units if unit.name in how.factors]
    wanted = _Rows(stack.references, reference, device, _stacked(factors, device))
    if wanted.shape != branch.shape:
        raise _NotSoundError
    errors = compared(stack.units, stored, branch.shape, branch.checked, wanted.decoded, device)
    if any(error.relative_error == torch.inf for error in errors):
        raise _NotSoundError
    return [
        Examined(unquantized_difference(unit, error), error) for unit, error in zip(stack.units, errors, strict=True)
    ]


def _stacked(factors: Sequence[Factors], device: torch.device) -> Factors | None:
    """The factors of every weight together: columns [weights, 1, in], rows [weights, out, 1]."""
    columns = [one.columns for one in factors if one.columns is not None]
    rows = [one.rows for one in factors if one.rows is not None]
    return (
        Factors(
            torch.stack(columns).unsqueeze(1).to(device) if columns else None,
            torch.stack(rows).unsqueeze(2).to(device) if rows else None,
        )
        if factors
        else None
    )


class _Rows:
    """Stored weights alike, decoded on a device some rows at a time as float32 [weights, rows, in].

    Raises (all of its methods): what FORMATS raise of parts that do not fit; _NotSoundError.
    """

    def __init__(
        self,
        units: Sequence[LogicalWeight],
        parts: Mapping[str, Tensor],
        device: torch.device,
        factors: Factors | None = None,
    ) -> None:
        self._unit, self._parts, self._device, self._factors = units[0], parts, device, factors
        self._scheme = units[0].scheme
        self._layout = FORMATS[self._scheme.format]
        self._one = {part: tensor[0] for part, tensor in parts.items()}
        self.shape = self._layout.shape(self._one, self._scheme)
        self._rows, self._columns = as_rows(self.shape)
        self._is_stack = len(units) > 1
        if self._is_stack and not can_be_stacked(parts, self._scheme, self._rows):
            raise _NotSoundError
        self._last: tuple[tuple[int, int], Tensor] | None = None

    def decoded(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop), times the factors."""
        if self._last is None or self._last[0] != (start, stop):
            self._last = None  # or two of them lie in memory
            self._last = (start, stop), self._times(self._decode(self._cut(start, stop)), start, stop)
        return self._last[1]

    def checked(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop), after looking at the numbers they are stored in."""
        parts = self._cut(start, stop)
        for part in LOCAL_SCALES:
            if part in parts and bool((parts[part].flatten(1).float() == 0).all(1).any()):
                raise _NotSoundError
        # zero-points are looked at with the outputs beside them
        seen = taller(parts) if "qzeros" in parts else parts
        if value_faults(self._unit, seen):
            raise _NotSoundError
        decoded = self._decode(parts)
        if erased_by_zero_scales(self._unit, parts, decoded, self._decode):
            raise _NotSoundError
        return decoded.float()

    def _cut(self, start: int, stop: int) -> Parts:
        parts: Mapping[str, Tensor] = self._parts
        if (start, stop) != (0, self._rows):
            cut = self._layout.rows(self._one, self._scheme, start, stop)
            parts = {part: tensor[None] for part, tensor in cut.items()}
        return {part: tensor.to(self._device, non_blocking=True) for part, tensor in parts.items()}

    def _decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        if self._is_stack or self._scheme.format == "plain":
            self._layout.shape({part: tensor[0] for part, tensor in parts.items()}, self._scheme)
            decoded = decode_stacked(parts, self._scheme)
        else:
            one = {part: tensor[0] for part, tensor in parts.items()}
            decoded = self._layout.decode(one, self._scheme)
        return decoded.reshape(len(next(iter(parts.values()))), -1, self._columns)

    def _times(self, weight: Tensor, start: int, stop: int) -> Tensor:
        weight = weight.float()
        if self._factors is None:
            return weight
        columns, rows = self._factors.columns, self._factors.rows
        weight = weight if columns is None else weight * columns
        return weight if rows is None else weight * rows[:, start:stop]


def read_both(stack: Stack, *, pinned: bool = False) -> tuple[Parts, Parts]:
    """The stored parts [weights, …] of a stack and of its references, in host memory; page-locked for copies to a GPU.

    Raises:
        CorruptCheckpointError: a file ends early.
        EngineError: the system cannot read it.
    """
    return read_alike(stack.units, pinned=pinned), read_alike(stack.references, pinned=pinned)


def read_stacks_ahead(stacks: Sequence[Stack], *, pinned: bool) -> Iterator[tuple[Stack, Read]]:
    """Every stack with what waits for its parts, in order; threads read the next ones in the meantime."""
    read = partial(read_both, pinned=pinned)
    return read_ahead(stacks, read, lambda stack: stack.stored_bytes, READ_AHEAD_BYTES)
