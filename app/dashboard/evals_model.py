"""What the evals page shows beyond `app.evals_model`: recoveries to draw, and filtered flips. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.evals_model import Flip, tasks_of
from q36eval.records import Measurement
from q36eval.reports.evals_figures import EvalsFigures, recovery_words

ALL = "all"
DIRECTIONS = {"lost": "regression", "gained": "improvement"}


@dataclass(frozen=True)
class RecoveryPoint:
    """A recovery to draw, as a share of the reference; a bound is None where it is not identified."""

    name: str
    value: float
    lower: float | None
    upper: float | None
    detail: str


def task_points(figures: EvalsFigures, group: str) -> list[RecoveryPoint]:
    """The tasks of a group, the least recovered first; what has no recovery cannot be drawn."""
    pairs = ((part.name.removeprefix(f"{group}/"), part.recovery) for part in tasks_of(figures, group))
    return sorted(_points(pairs), key=lambda point: (point.value, point.name))


def length_points(figures: EvalsFigures, group: str) -> list[RecoveryPoint]:
    """The lengths of a group in tokens, ascending."""
    return _points((f"{found.length:,}", found.recovery) for found in figures.lengths(group))


def _points(pairs: Iterable[tuple[str, Measurement | None]]) -> list[RecoveryPoint]:
    return [_point(name, m) for name, m in pairs if m is not None and math.isfinite(m.value)]


def _point(name: str, m: Measurement) -> RecoveryPoint:
    bounds = (m.effect_interval.lower, m.effect_interval.upper)
    lower, upper = (bound if math.isfinite(bound) else None for bound in bounds)
    detail = f"{name}: {recovery_words(m)}, {m.counts.scored} items"
    return RecoveryPoint(name=name, value=m.value, lower=lower, upper=upper, detail=detail)


def select(flips: Sequence[Flip], group: str = ALL, direction: str = ALL) -> list[Flip]:
    """The flips of one group and direction (a key of DIRECTIONS), or of `ALL`."""
    wanted = DIRECTIONS.get(direction)
    return [flip for flip in flips if group in (ALL, flip.group) and wanted in (None, flip.direction)]
