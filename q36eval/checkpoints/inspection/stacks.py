"""The pass over all weights: those that are stored alike are read, decoded, checked and compared together.

A stack is sound or it is not: where anything about it has to be reported, its weights are examined one by one
(`error.examine`), so that every sentence is about one weight and has one origin.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats.stacked import can_be_stacked, decode_stacked, taller
from q36eval.checkpoints.inspection.comparison import SLAB, as_rows, block_height, compared, slabs
from q36eval.checkpoints.inspection.error import MALFORMED, Examined, Factors, Pass, examine, unquantized_difference
from q36eval.checkpoints.inspection.values import LOCAL_SCALES, erased_by_zero_scales, value_faults
from q36eval.checkpoints.stored_groups import Parts, is_read_as_it_lies, read_alike, stored_as
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import EngineError

LARGE_BYTES = 2**27


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


def stacks_of(units: Sequence[LogicalWeight], how: Pass) -> list[Stack]:
    """All weights, those of a layer that are alike together up to `SLAB` values; the largest weights come first, since
    whoever works on one of them alone is the last to end."""
    alike: dict[Hashable, list[LogicalWeight]] = defaultdict(list)
    for unit in units:
        alike[_key(unit, how)].append(unit)
    stacks = []
    for members in alike.values():
        values = members[0].stored_bytes * (1 if members[0].is_plain else 2)  # two to a byte at most
        count = max(SLAB // max(values, 1), 1)
        for start in range(0, len(members), count):
            some = members[start : start + count]
            references = [how.reference[unit.name] for unit in some if unit.name in how.reference]
            stacks.append(Stack(tuple(some), tuple(references)))
    return sorted(stacks, key=lambda stack: stack.stored_bytes < LARGE_BYTES)


def _key(unit: LogicalWeight, how: Pass) -> Hashable:
    """Equal for two weights that can be one stack."""
    reference, factors = how.reference.get(unit.name), how.factors.get(unit.name)
    both = (unit, *([reference] if reference is not None else []))
    scaled = None if factors is None else (factors.columns is None, factors.rows is None)
    layer = ".".join(unit.name.split(".")[:3])
    return (layer, *(stored_as(one) for one in both), how.expected.get(unit.name), scaled)


@contextmanager
def threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads with one torch thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(max(1, workers)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def examine_all(units: Sequence[LogicalWeight], how: Pass, workers: int) -> list[Examined]:
    """Every weight examined by `workers` threads, in their order.

    Raises:
        UsageError: the reference's weight cannot be decoded.
        EngineError: the memory of this machine does not suffice, or its disk gives errors.
    """
    stacks = stacks_of(units, how)
    with threads(workers) as pool:
        examined = list(pool.map(lambda stack: _examine(stack, how), stacks))
    by_name = {
        unit.name: one
        for stack, outcomes in zip(stacks, examined, strict=True)
        for unit, one in zip(stack.units, outcomes, strict=True)
    }
    return [by_name[unit.name] for unit in units]


def _examine(stack: Stack, how: Pass) -> list[Examined]:
    """The weights of a stack examined together, or one by one where something has to be reported about one."""
    lies = all(is_read_as_it_lies(unit) for unit in (*stack.units, *stack.references))
    if lies and not (stack.units[0].is_plain and stack.units[0].name in how.factors):  # judged value by value
        try:
            return _examined(stack, how)
        except EngineError:  # the disk's trouble
            raise
        except (*MALFORMED, _NotSoundError):
            pass
    return [examine(unit, how) for unit in stack.units]


def _examined(stack: Stack, how: Pass) -> list[Examined]:
    first, stored = stack.units[0], read_alike(stack.units, pinned=False)
    branch = _Rows(stack.units, stored)
    if how.expected.get(first.name, branch.shape) != branch.shape:
        raise _NotSoundError
    if not stack.references:
        rows, _ = as_rows(branch.shape)
        height = block_height(stack.units, rows)
        for start, stop in [(0, rows)] if len(stack.units) > 1 else slabs(branch.shape, height):
            branch.checked(start, stop)
        return [Examined(())] * len(stack.units)
    factors = [how.factors[unit.name] for unit in stack.units if unit.name in how.factors]
    wanted = _Rows(stack.references, read_alike(stack.references, pinned=False), _stacked(factors))
    if wanted.shape != branch.shape:
        raise _NotSoundError
    errors = compared(stack.units, stored, branch.shape, branch.checked, wanted.decoded)
    if any(error.relative_error == torch.inf for error in errors):
        raise _NotSoundError
    return [
        Examined(unquantized_difference(unit, error), error) for unit, error in zip(stack.units, errors, strict=True)
    ]


def _stacked(factors: Sequence[Factors]) -> Factors | None:
    """The factors of every weight together: columns [weights, 1, in], rows [weights, out, 1]."""
    columns = [one.columns for one in factors if one.columns is not None]
    rows = [one.rows for one in factors if one.rows is not None]
    if not factors:
        return None
    return Factors(
        torch.stack(columns).unsqueeze(1) if columns else None, torch.stack(rows).unsqueeze(2) if rows else None
    )


class _Rows:
    """Stored weights alike, decoded some rows at a time as float32 [weights, rows, in].

    Raises (all of its methods): what FORMATS raise of parts that do not fit; _NotSoundError.
    """

    def __init__(
        self, units: Sequence[LogicalWeight], parts: Mapping[str, Tensor], factors: Factors | None = None
    ) -> None:
        self._unit, self._parts, self._factors = units[0], parts, factors
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
        if (start, stop) == (0, self._rows):
            return dict(self._parts)
        cut = self._layout.rows(self._one, self._scheme, start, stop)
        return {part: tensor[None] for part, tensor in cut.items()}

    def _decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        one = {part: tensor[0] for part, tensor in parts.items()}
        if self._is_stack or self._scheme.format == "plain":
            self._layout.shape(one, self._scheme)
            decoded = decode_stacked(parts, self._scheme)
        else:
            decoded = self._layout.decode(one, self._scheme)
        return decoded.reshape(len(next(iter(parts.values()))), -1, self._columns)

    def _times(self, weight: Tensor, start: int, stop: int) -> Tensor:
        weight = weight.float()
        if self._factors is None:
            return weight
        columns, rows = self._factors.columns, self._factors.rows
        weight = weight if columns is None else weight * columns
        return weight if rows is None else weight * rows[:, start:stop]
