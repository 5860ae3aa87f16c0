"""Vision tower and multi-token head: what a branch ships besides the text model, against the reference's.

No probe runs them, so what is stored unquantized has to be what the reference stores; a branch that its card says to
ship them is held to that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.findings import UNQUANTIZED, Finding, Promise, Section, Severity, some_of
from q36eval.checkpoints.names import canonical, fused_experts, left_out_as, split_part
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import FLOATS, PLAIN
from q36eval.checkpoints.weights import expert_entries
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    pass

SHIPPED = {"mtp": "multi-token prediction", "vision": "vision tower"}
"""By the word of a family file, what the tensors are called that are no part of the text model."""


@dataclass(frozen=True)
class _Part:
    """The tensors of one reason by name without the layout's prefix, fused experts one by one."""

    entries: Mapping[str, TensorEntry]

    @property
    def modules(self) -> dict[str, list[str]]:
        """The parts of every module."""
        modules: dict[str, list[str]] = defaultdict(list)
        for name in self.entries:
            module, part = split_part(name)
            modules[module].append(part)
        return modules

    def quantized(self) -> list[str]:
        """Modules that are stored in anything but one tensor of numbers."""
        return [
            module
            for module, parts in self.modules.items()
            if len(parts) > 1 or self.entries[f"{module}.{parts[0]}" if parts[0] else module].dtype not in FLOATS
        ]


def parts_left_out(checkpoint: Checkpoint) -> dict[str, _Part]:
    """What is no part of the text model, by reason."""
    by_reason: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    for stored, entry in checkpoint.tensors.items():
        reason = left_out_as(stored)
        if reason is not None:
            by_reason[reason] |= _one_by_one(canonical(stored).removeprefix("model."), entry)
    return {reason: _Part(entries) for reason, entries in by_reason.items()}


def _one_by_one(name: str, entry: TensorEntry) -> dict[str, TensorEntry]:
    """The experts of a fused tensor, which others store one by one; any other tensor as it is."""
    module, part = split_part(name)
    if part == "weight" and fused_experts(module) is not None and entry.dtype in FLOATS:
        with suppress(CorruptCheckpointError, UsageError):
            return {name: parts["weight"] for name, parts in expert_entries(module, {part: entry}, PLAIN).items()}
    return {name: entry}


def _differences(
    checkpoint: Checkpoint, reference: Checkpoint, here: _Part | None, there: _Part | None, workers: int
) -> dict[str, str]:
    """What differs in tensors that both store unquantized, by stored name; they are paired by their canonical names."""
    if here is None or there is None:
        return {}
    quantized = {*here.quantized(), *there.quantized()}
    names = [name for name in here.entries if name in there.entries and split_part(name)[0] not in quantized]
    pairs = [(here.entries[name], there.entries[name]) for name in names]
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        outcomes = pool.map(partial(_difference, checkpoint, reference), pairs)
    return {here.entries[name].name: how for name, how in zip(names, outcomes, strict=True) if how}


def _difference(one: Checkpoint, other: Checkpoint, pair: tuple[TensorEntry, TensorEntry]) -> str:
    """What differs; empty where the numbers are equal, also in another dtype."""
    mine, theirs = pair
    if mine.shape != theirs.shape:
        return f"shape {list(mine.shape)} against {list(theirs.shape)}"
    here, there = one.read_entry(mine).double(), other.read_entry(theirs).double()
    if bool(((here == there) | (here.isnan() & there.isnan())).all()):
        return ""
    size = float(there.norm())
    return f"a relative error of {float((here - there).norm()) / size:.2g}" if size > 0 else "zero in the reference"


def left_out_findings(
    checkpoint: Checkpoint,
    reference: Checkpoint | None,
    workers: int,
    promises: Sequence[Promise],
) -> list[Finding]:
    """What blocks where the branch is said to ship that part, and is shown elsewhere."""
    mine = parts_left_out(checkpoint)
    theirs = {} if reference is None else parts_left_out(reference)
    findings: list[Finding] = []
    for reason in SHIPPED.values():
        promise = next((one for one in promises if one.tensors == reason), None)
        here, there = mine.get(reason), theirs.get(reason)
        told = {} if reference is None else _differences(checkpoint, reference, here, there, workers)
        findings += [
            *_missing(reason, here, there, promise),
            *_quantized(reason, here, promise),
            *_zero(checkpoint, reason, here if there is None else None, promise),
        ]
        if told:
            some = some_of([f"{name} ({how})" for name, how in told.items()])
            message = f"{reason}: {len(told):,} unquantized tensors differ from the reference's: {some}."
            findings.append(_finding(Section.WEIGHTS, "shipped-differs", next(iter(told)), message, promise))
    return findings


def _missing(reason: str, here: _Part | None, there: _Part | None, promise: Promise | None) -> Iterator[Finding]:
    if here is None:
        if promise is not None:
            message = f"{reason}: {promise.source} says that it is shipped, and no tensor of it is stored."
            yield _finding(Section.COVERAGE, "shipped-missing", reason, message, promise)
        elif there is not None:
            message = f"{reason}: the reference has {len(there.entries):,} tensors, and none is stored here."
            yield _finding(Section.COVERAGE, "shipped-missing", reason, message, promise)
        return
    lacking = [name for name in (there.modules if there else {}) if name not in here.modules]
    if lacking:
        message = f"{reason}: {len(lacking):,} weights of the reference are missing: {some_of(lacking)}."
        yield _finding(Section.COVERAGE, "shipped-incomplete", lacking[0], message, promise)


def _quantized(reason: str, here: _Part | None, promise: Promise | None) -> Iterator[Finding]:
    names = [] if here is None else here.quantized()
    if not names or (promise is not None and promise.stored != UNQUANTIZED):
        return
    says = "no probe measures what that costs" if promise is None else f"{promise.source} says that it is unquantized"
    message = f"{reason}: {len(names):,} weights are quantized, and {says}: {some_of(names)}."
    yield _finding(Section.COVERAGE, "shipped-quantized", names[0], message, promise)


def _zero(checkpoint: Checkpoint, reason: str, here: _Part | None, promise: Promise | None) -> Iterator[Finding]:
    """Without the reference's, a matrix of nothing but zeros is what can be told."""
    entries = {} if here is None else here.entries
    names = [
        entry.name
        for entry in entries.values()
        if len(entry.shape) > 1 and entry.dtype in FLOATS
        if not bool(checkpoint.read_entry(entry).any())
    ]
    if names:
        message = f"{reason}: {len(names):,} weights are all zero: {some_of(names)}."
        yield _finding(Section.COVERAGE, "shipped-zero", names[0], message, promise)


def _finding(section: Section, rule: str, subject: str, message: str, promise: Promise | None) -> Finding:
    severity = Severity.ADVISORY if promise is None else Severity.BLOCKING
    return Finding(section=section, rule=rule, severity=severity, subject=subject, message=message)
