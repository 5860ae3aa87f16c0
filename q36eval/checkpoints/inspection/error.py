"""One pass over the weights: stored numbers, shapes, and the error against the reference, tensor by tensor."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.findings import Finding, Section
from q36eval.checkpoints.inspection.grids import honest_rounding
from q36eval.checkpoints.inspection.opening import integrity
from q36eval.checkpoints.inspection.steps import Usage, usage
from q36eval.checkpoints.inspection.stored import declared_bits, declared_block, stored_label
from q36eval.checkpoints.inspection.units import Unit
from q36eval.checkpoints.inspection.values import erased_by_zero_scales, value_faults
from q36eval.checkpoints.weights import lacks_memory
from q36eval.errors import EngineError, Q36Error, UsageError

MALFORMED = (Q36Error, ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""What numbers and shapes that are not what they should be raise."""


@dataclass(frozen=True)
class WeightError:
    """One weight against the reference's. `usage` and `honest` are None where the grid is not known.

    `gain` is <branch, reference> / <reference, reference>: 1 unless the weight as a whole is larger or smaller.
    `honest` is the relative error that rounding the reference's weight to nearest on its own grid costs, and
    `honest_gain` the gain that this has.
    """

    name: str
    tensor_class: str
    stored: str
    relative_error: float
    gain: float
    honest: float | None = None
    honest_gain: float = 1.0
    usage: Usage | None = None

    @property
    def cost(self) -> float:
        """The error in units of what honest rounding of this very weight costs; relative where that is not known."""
        return self.relative_error if self.honest is None else self.relative_error / self.honest

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise, in decibels."""
        return math.inf if self.relative_error == 0 else -20 * math.log10(self.relative_error)


@dataclass(frozen=True)
class Examined:
    """One weight after the pass; `error` is None where there was nothing to compare it with, or it cannot be read."""

    findings: tuple[Finding, ...]
    error: WeightError | None = None


@dataclass(frozen=True)
class Pass:
    """What the pass needs to know beside the weight itself. `excepted` are globs of tensors that may differ."""

    expected: Mapping[str, tuple[int, ...]]
    reference: Mapping[str, Unit]
    excepted: tuple[str, ...] = ()


def examine_all(units: Sequence[Unit], how: Pass, workers: int) -> list[Examined]:
    """Every weight examined, by `workers` threads with one torch thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            return list(pool.map(lambda unit: _examine(unit, how), units))
    finally:
        torch.set_num_threads(before)


def _examine(unit: Unit, how: Pass) -> Examined:
    """Whatever a weight of the branch makes the arithmetic raise is a finding about it, and the others are judged.

    Raises:
        UsageError: the reference's weight cannot be decoded.
        EngineError: the memory of this machine does not suffice.
    """
    findings: list[Finding] = []
    try:
        return _examined(unit, how, findings)
    except _ReferenceError as error:
        raise UsageError(f"The reference cannot be used: {error}") from error
    except MALFORMED as error:
        if isinstance(error, MemoryError) or lacks_memory(error):
            raise EngineError(f"The memory of this machine does not suffice to inspect {unit.name}.") from error
        return Examined((*findings, integrity("undecodable", unit.name, _told(unit, error))))


def _told(unit: Unit, error: Exception) -> str:
    """One sentence that names the weight: ours as it is, what Python or torch says with its kind."""
    if isinstance(error, Q36Error) and unit.name in str(error):
        return str(error)
    reason = str(error) if isinstance(error, Q36Error) else f"it cannot be read ({type(error).__name__}: {error})."
    return f"{unit.name}: {reason}"


def _examined(unit: Unit, how: Pass, findings: list[Finding]) -> Examined:
    parts = unit.read_parts()
    findings += value_faults(unit, parts)
    decoded = unit.decode(parts)
    findings += erased_by_zero_scales(unit, parts, decoded)
    needed = how.expected.get(unit.name)
    if needed is not None and tuple(decoded.shape) != needed:
        message = f"{unit.name} has shape {list(decoded.shape)}, the configuration calls for {list(needed)}."
        return Examined((*findings, integrity("shape", unit.name, message)))
    other = how.reference.get(unit.name)
    if other is None:
        return Examined(tuple(findings))
    original = _original(other)
    if original.shape != decoded.shape:
        message = f"{unit.name} has shape {list(decoded.shape)}, the reference's has {list(original.shape)}."
        return Examined((*findings, integrity("shape", unit.name, message)))
    compared = _compare(unit, parts, decoded.float(), original.float())
    return Examined((*findings, *_unquantized_difference(unit, compared, how.excepted)), compared)


class _ReferenceError(Exception):
    """The reference's weight cannot be compared with."""


def _original(unit: Unit) -> Tensor:
    try:
        decoded = unit.decode(unit.read_parts())
    except MALFORMED as error:
        if isinstance(error, MemoryError) or lacks_memory(error):
            raise
        raise _ReferenceError(str(error)) from error
    if not bool(torch.isfinite(decoded).all()):
        raise _ReferenceError(f"{unit.weight.checkpoint.path}: {unit.name} holds values that are no finite numbers.")
    return decoded


def _compare(unit: Unit, parts: Mapping[str, Tensor], decoded: Tensor, original: Tensor) -> WeightError:
    label = stored_label(unit, tuple(decoded.shape))
    difference = decoded - original
    noise, signal = float(torch.linalg.vector_norm(difference)), float(torch.linalg.vector_norm(original))
    relative = noise / signal if signal else (0.0 if noise == 0 else math.inf)
    gain = float((decoded * original).sum()) / signal**2 if signal else 1.0
    relative = relative if math.isfinite(relative) else math.inf
    scheme = unit.weight.scheme
    plain = unit.is_plain or not math.isfinite(relative)
    rounding = None if plain else honest_rounding(parts, original, declared_block(scheme), declared_bits(scheme))
    if rounding is None:
        return WeightError(unit.name, unit.tensor_class, label, relative, gain)
    # what is exact on its own grid still costs a hundredth of half a step: the scale's own rounding
    floor = float(rounding.half_steps.square().mean().sqrt()) / 100
    honest = max(rounding.noise, floor) * original.numel() ** 0.5 / signal if signal else 1.0
    used = usage(difference, original, rounding)
    return WeightError(unit.name, unit.tensor_class, label, relative, gain, honest, rounding.gain, used)


def _unquantized_difference(unit: Unit, compared: WeightError, excepted: tuple[str, ...]) -> tuple[Finding, ...]:
    if not unit.is_plain or compared.relative_error == 0:
        return ()
    if any(fnmatch.fnmatchcase(unit.name, pattern) for pattern in excepted):
        return ()
    message = (
        f"{unit.name} is stored unquantized ({compared.stored}) and differs from the reference's, "
        f"relative error {compared.relative_error:.3g}."
    )
    return (Finding(section=Section.UNQUANTIZED, rule="unquantized-differs", subject=unit.name, message=message),)
