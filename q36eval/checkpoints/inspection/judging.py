"""The errors of one class and scheme judged twice: against each other, and against what the scheme can cost."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from q36eval.checkpoints.inspection.error import WeightError
from q36eval.checkpoints.inspection.findings import ErrorRow, Finding, Section, Severity
from q36eval.checkpoints.inspection.steps import SCALE_LIMIT, SCALES

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
COARSE = 0.3
"""Relative error (10 dB) from which a class is pointed out as coarse, whatever its scheme allows."""

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
    found: list[Finding] = []
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
                found.append(
                    Finding(section=Section.OUTLIERS, rule="error-outlier", subject=member.name, message=message)
                )
    return found


def beyond_scheme(errors: Iterable[WeightError]) -> list[Finding]:
    """Weights that are further from the reference than rounding to their own grid can take them.

    Rounding also leaves a weight's size alone: with relative error D^(1/2) an ideal quantizer has a gain of 1 - D (its
    error is orthogonal to what it gives, Gersho and Gray 1992, section 6.2), rounding to nearest lies between that and
    1, and clipping a little below. So more than 2 D + 0.01 beyond that is a scale and no rounding; D is what rounding
    the reference to nearest costs, not what the file is off by.
    """
    found: list[Finding] = []
    for error in errors:
        told = _beyond(error)
        if told is not None:
            message = f"{error.name}: {told}"
            found.append(Finding(section=Section.BOUNDS, rule="beyond-scheme", subject=error.name, message=message))
    return found


def _beyond(error: WeightError) -> str | None:
    """What is wrong with one weight; None when nothing is."""
    if error.relative_error == math.inf:
        return "its distance from the reference is not finite."
    if error.usage is None or error.honest is None:
        return None
    if error.usage.what == SCALES and error.usage.share > BOUND_TOLERANCE:
        return (
            f"its scales are {error.usage.share * SCALE_LIMIT:.2g} times as large as its largest values call for, so "
            f"that the grid is as much coarser than {error.stored} (relative error {error.relative_error:.3g})."
        )
    if not error.usage.share <= BOUND_TOLERANCE:
        return (
            f"{error.usage.share:.2g} times what rounding to {error.stored} can cost {error.usage.what} "
            f"(relative error {error.relative_error:.3g}), worst in row {error.usage.row} from column "
            f"{error.usage.column}."
        )
    if error.relative_error > CEILING:
        return f"relative error {error.relative_error:.3g}: nothing of the reference's weight is left."
    tolerance = min(2 * error.honest**2, LARGEST_GAIN_TOLERANCE) + GAIN_TOLERANCE
    if abs(error.gain - 1) > tolerance + abs(error.honest_gain - 1):
        return (
            f"{error.gain:.3f} times as large as the reference's; rounding to {error.stored} does not change a "
            f"weight's size (relative error {error.relative_error:.3g})."
        )
    return None


def coarse(rows: Sequence[ErrorRow]) -> list[Finding]:
    """Classes whose scheme is kept but costs much: no damage, and worth knowing before anything is measured."""
    return [
        Finding(
            section=Section.BOUNDS,
            rule="coarse-scheme",
            severity=Severity.ADVISORY,
            subject=row.tensor_class,
            message=f"{row.tensor_class} as {row.stored}: median relative error {row.median_relative_error:.2g} "
            f"({row.median_sqnr_db:.1f} dB); the scheme is kept, but it leaves little of the weights.",
        )
        for row in rows
        if row.median_relative_error > COARSE
    ]


def error_rows(groups: Grouped) -> tuple[ErrorRow, ...]:
    """One row per class and scheme."""
    return tuple(_row(kind, stored, members) for (kind, stored), members in groups.items())


def _row(kind: str, stored: str, members: list[WeightError]) -> ErrorRow:
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
