"""One weight examined: stored numbers, shape, and the error against the reference; and the errors of all, judged.

The errors of one class and scheme are judged twice: against each other, and against what the scheme can cost.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.comparison import WeightError, as_rows, compared
from q36eval.checkpoints.inspection.damaged_folder import integrity
from q36eval.checkpoints.inspection.findings import ErrorRow, Finding, Section, Severity
from q36eval.checkpoints.inspection.grids import SCALE_LIMIT, SCALES
from q36eval.checkpoints.inspection.values import erased_by_zero_scales, value_faults
from q36eval.checkpoints.weights import UNDECODABLE, LogicalWeight, lacks_memory
from q36eval.errors import EngineError, Q36Error, UsageError

MALFORMED = (*UNDECODABLE, MemoryError, OSError)
"""What numbers and shapes that are not what they should be raise."""


@dataclass(frozen=True)
class Examined:
    """One weight after the pass; `error` is None where there was nothing to compare it with, or it cannot be read."""

    findings: tuple[Finding, ...]
    error: WeightError | None = None


@dataclass(frozen=True)
class Factors:
    """By what the reference's weight [out, in] is multiplied before the branch's is compared with it: columns [in] and
    rows [out], None where by nothing."""

    columns: Tensor | None = None
    rows: Tensor | None = None

    def applied(self, weight: Tensor) -> Tensor:
        """The weight times both."""
        weight = weight if self.columns is None else weight * self.columns
        return weight if self.rows is None else weight * self.rows[:, None]


@dataclass(frozen=True)
class Pass:
    """What the pass needs to know in addition to the weight; `factors` are what smoothing did to the weights named."""

    expected: Mapping[str, tuple[int, ...]]
    reference: Mapping[str, LogicalWeight]
    factors: Mapping[str, Factors] = field(default_factory=dict)
    centre: float = 1.0
    """What a layer's norm multiplies by beside its weight: 1 where weights are zero-centred, else 0."""
    head: int = 0
    """The width of a value head; 0 where that is not known."""


def examine(unit: LogicalWeight, how: Pass) -> Examined:
    """One weight examined, decoded on the CPU; whatever it makes the arithmetic raise is a finding about it.

    Raises:
        UsageError: the reference's weight cannot be decoded.
        EngineError: the memory of this machine does not suffice, or its disk gives errors.
    """
    findings: list[Finding] = []
    try:
        return _examined(unit, how, findings)
    except EngineError:  # the disk's trouble
        raise
    except _ReferenceError as error:
        raise UsageError("reference-unusable", f"The reference cannot be used: {error}") from error
    except MALFORMED as error:
        if isinstance(error, MemoryError) or lacks_memory(error):
            raise EngineError(
                "memory-insufficient", f"The memory of this machine does not suffice to inspect {unit.name}."
            ) from error
        return Examined((*findings, integrity("undecodable", unit.name, _told(unit, error))))


def _told(unit: LogicalWeight, error: Exception) -> str:
    """One sentence that names the weight: ours as it is, what Python or torch says with its kind."""
    if isinstance(error, Q36Error) and unit.name in str(error):
        return str(error)
    reason = str(error) if isinstance(error, Q36Error) else f"it cannot be read ({type(error).__name__}: {error})."
    return f"{unit.name}: {reason}"


def _examined(unit: LogicalWeight, how: Pass, findings: list[Finding]) -> Examined:
    parts = unit.read_parts()
    findings += value_faults(unit, parts)
    decoded = unit.decode(parts)
    findings += erased_by_zero_scales(unit, parts, decoded, unit.decode)
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
    factors = how.factors.get(unit.name)
    wanted = original.float() if factors is None else factors.applied(original.float())
    compared = _compare(unit, parts, decoded.float(), wanted)
    if unit.is_plain and (
        not _beyond_converting(unit, decoded, original)
        if factors is None
        else within_roundings(decoded.float(), wanted)
    ):
        return Examined(tuple(findings), compared)
    return Examined((*findings, *unquantized_difference(unit, compared)), compared)


BF16_UNIT = 2.0**-8
"""The most that rounding to BF16 changes a value by, relative."""


def within_roundings(branch: Tensor, wanted: Tensor) -> bool:
    """Whether every value is the wanted one but for three roundings to BF16: of columns, of rows, of the factor."""
    return bool(((branch - wanted).abs() <= 3 * BF16_UNIT * wanted.abs()).all())


class _ReferenceError(Exception):
    """The reference's weight cannot be compared with."""


def _original(unit: LogicalWeight) -> Tensor:
    try:
        decoded = unit.decode(unit.read_parts())
    except EngineError:
        raise
    except MALFORMED as error:
        if isinstance(error, MemoryError) or lacks_memory(error):
            raise
        raise _ReferenceError(str(error)) from error
    if not bool(torch.isfinite(decoded).all()):
        raise _ReferenceError(f"{unit.checkpoint.path}: {unit.name} holds values that are not finite.")
    return decoded


def _compare(unit: LogicalWeight, parts: Mapping[str, Tensor], decoded: Tensor, original: Tensor) -> WeightError:
    """One weight, decoded, and the reference's: both float32 of the same shape."""
    shape = tuple(decoded.shape)
    stored = {part: tensor[None] for part, tensor in parts.items()}
    rows, wanted = (tensor.reshape(1, *as_rows(shape)) for tensor in (decoded, original))
    return compared(
        [unit], stored, shape, lambda start, stop: rows[:, start:stop], lambda start, stop: wanted[:, start:stop]
    )[0]


def unquantized_difference(unit: LogicalWeight, compared: WeightError) -> tuple[Finding, ...]:
    if not unit.is_plain or compared.relative_error == 0:
        return ()
    message = (
        f"{unit.name} is stored unquantized ({compared.stored}) and differs from the reference's, "
        f"relative error {compared.relative_error:.3g}."
    )
    if unit.name.rpartition(".")[2] in RECURRENT and compared.relative_error < ROUNDED:
        message += (
            " An error of this size is a rounding to few bits. The parameter controls how the recurrent state decays, "
            "so its error accumulates over a text; store it as in the reference (omlx issue 913: an exporter's skip "
            "pattern said a_log)."
        )
    return (Finding(section=Section.WEIGHTS, rule="unquantized-differs", subject=unit.name, message=message),)


RECURRENT = ("A_log", "dt_bias")
"""Parameters of state-space layers and of linear attention."""
ROUNDED = 0.15
"""What rounding to 4 bits costs; a larger error has another cause."""


def _beyond_converting(unit: LogicalWeight, decoded: Tensor, original: Tensor) -> bool:
    """Whether any number is further off than a file format's own writing of it can move it; NaN is."""
    moved_by = dict(unit.parts)["weight"].moved_by
    return not bool(((decoded.double() - original.double()).abs() <= moved_by).all())


LEAST_MEMBERS = 8
"""A class of fewer weights has no spread to speak of; the bound per scheme still judges each."""
LEAST_SPREAD = 0.05
"""Floor of the robust standard deviation of log cost: one producer's experts agree within 1 %."""
OUTLIER_Z = 10.0
"""With the floor, a weight stands out at 1.65 times its class' median cost. The largest z of any branch we ship is 3.9
(GPTQ, in whose classes the error spreads most); one scale off by two gives a 4-bit weight z = 16 and more."""
BOUND_TOLERANCE = 1.001
GAIN_TOLERANCE = 0.01
LARGEST_GAIN_TOLERANCE = 0.5
CEILING = 0.9
"""Relative error from which a weight counts as erased, whatever its grid: an all-zero one has 1, another one 1.4. The
coarsest rounding we know of costs 0.55 (2 bits, Student's t weights with 4 degrees of freedom), with GPTQ 0.75."""

Grouped = dict[tuple[str, str], list[WeightError]]


def grouped(errors: Iterable[WeightError]) -> Grouped:
    """Errors by class of tensor and stored scheme, in a fixed order."""
    groups: Grouped = defaultdict(list)
    for error in errors:
        groups[error.tensor_class, error.stored].append(error)
    return dict(sorted(groups.items()))


def outliers(groups: Grouped, plain: frozenset[str]) -> list[Finding]:
    """Quantized weights whose cost stands out in their class (median and MAD, after Iglewicz and Hoaglin 1993).

    The cost is the error in units of what rounding that very weight to nearest gives: a weight with a heavy tail has a
    larger error than its neighbours by right, and a cost of 1 like them.
    """
    findings: list[Finding] = []
    for (kind, stored), members in groups.items():
        quantized = [member for member in members if member.name not in plain]
        if len(quantized) < LEAST_MEMBERS:
            continue
        logs = [math.log(min(max(member.cost, 1e-12), 1e12)) for member in quantized]
        centre = median(logs)
        spread = max(LEAST_SPREAD, 1.4826 * median(abs(value - centre) for value in logs))
        for member, value in zip(quantized, logs, strict=True):
            z = (value - centre) / spread
            if z > OUTLIER_Z:
                message = (
                    f"{member.name}: relative error {member.relative_error:.3g}, in units of what rounding to nearest "
                    f"costs {math.exp(value - centre):.3g} times the median over the {len(quantized)} {stored} weights "
                    f"of class {kind} (z = {z:.0f})."
                )
                certain = is_beyond(member) or not _is_compensated(quantized)
                findings.append(_far("error-outlier", member, message, certain))
    return findings


def beyond_scheme(errors: Iterable[WeightError]) -> list[Finding]:
    """Weights that are further from the reference than rounding to their own grid can take them.

    Rounding also leaves a weight's size alone: with relative error D^(1/2) an ideal quantizer has a gain of 1 - D (its
    error is orthogonal to what it gives, Gersho and Gray 1992, section 6.2), rounding to nearest lies between that and
    1, and clipping a little below. So more than 2 D + 0.01 beyond that is a scale and no rounding; D is what rounding
    the reference to nearest costs, not what the file is off by.
    """
    findings: list[Finding] = []
    errors = list(errors)
    compensated = {key for key, members in grouped(errors).items() if _is_compensated(members)}
    for error in errors:
        fault = _beyond(error)
        if fault is not None:
            sentence, certain = fault
            certain = certain or (error.tensor_class, error.stored) not in compensated
            findings.append(_far("beyond-scheme", error, f"{error.name}: {sentence}", certain))
    return findings


def _far(rule: str, error: WeightError, message: str, certain: bool) -> Finding:
    """A weight further from the reference than others; where GPTQ may have moved it there, measuring has to tell."""
    if certain:
        return Finding(section=Section.WEIGHTS, rule=rule, subject=error.name, message=message)
    message += " GPTQ can move a weight that far; KL and canaries measure what it costs."
    return Finding(section=Section.WEIGHTS, rule=rule, subject=error.name, message=message, severity=Severity.ADVISORY)


def _is_compensated(members: Sequence[WeightError]) -> bool:
    """Whether most weights of a class were not rounded to nearest; of one among others, GPTQ explains nothing."""
    return 2 * sum(member.usage is not None and member.usage.compensated for member in members) > len(members)


def is_beyond(error: WeightError | None) -> bool:
    """Whether one weight is certainly further from the reference than its scheme allows."""
    fault = None if error is None else _beyond(error)
    return fault is not None and fault[1]


def _beyond(error: WeightError) -> tuple[str, bool] | None:
    """What is wrong with one weight, and whether it certainly is; None when nothing is."""
    if error.relative_error == math.inf:
        return "its distance from the reference is not finite.", True
    if error.usage is None or error.honest is None:
        return None
    if error.usage.what == SCALES and error.usage.share > BOUND_TOLERANCE:
        return (
            f"its scales are {error.usage.share * SCALE_LIMIT:.2g} times as large as its largest values call for, so "
            f"that the grid is as much coarser than {error.stored} (relative error {error.relative_error:.3g}).",
            True,
        )
    far = None
    if not error.usage.share <= BOUND_TOLERANCE:
        far = (
            f"{error.usage.share:.2g} times what rounding to {error.stored} can cost {error.usage.what} "
            f"(relative error {error.relative_error:.3g}), worst in row {error.usage.row} from column "
            f"{error.usage.column}."
        )
    if far is not None and error.usage.is_certain:
        return far, True
    if error.relative_error > CEILING:
        return f"relative error {error.relative_error:.3g}: nothing of the reference's weight is left.", True
    tolerance = min(2 * error.honest**2, LARGEST_GAIN_TOLERANCE) + GAIN_TOLERANCE
    if abs(error.gain - 1) > tolerance + abs(error.honest_gain - 1):
        return (
            f"{error.gain:.3f} times as large as the reference's; rounding to {error.stored} does not change a "
            f"weight's size (relative error {error.relative_error:.3g}).",
            True,
        )
    return None if far is None else (far, False)


def error_row(kind: str, stored: str, members: list[WeightError]) -> ErrorRow:
    """The row of one class and scheme."""
    worst = max(members, key=lambda member: member.relative_error)
    usages = [member.usage.share for member in members if member.usage is not None]
    return ErrorRow(
        tensor_class=kind,
        stored=stored,
        count=len(members),
        median_relative_error=median(member.relative_error for member in members),
        median_sqnr_db=median(member.sqnr_db for member in members),
        worst=worst.name,
        worst_relative_error=worst.relative_error,
        worst_sqnr_db=worst.sqnr_db,
        worst_bound_usage=max(usages) if usages else None,
    )
