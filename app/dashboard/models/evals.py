"""What the evals page shows beyond `app.evals_model`: recoveries and scores to draw, flips, choices. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from q36eval.app.dashboard.models.canaries import Choice, Held
from q36eval.app.evals_model import Flip, tasks_of
from q36eval.records import Measurement
from q36eval.reports._text import number
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


@dataclass(frozen=True)
class ScorePair:
    """One task's score under both deployments, for tasks whose recovery was not measured."""

    name: str
    reference: float
    branch: float
    items: int


def score_pairs(figures: EvalsFigures, group: str) -> list[ScorePair]:
    """The tasks of a group that have a score under both, the most lost first."""
    pairs = []
    for part in tasks_of(figures, group):
        ours, theirs = part.accuracy.value, part.accuracy.reference_value
        if theirs is not None and math.isfinite(ours) and math.isfinite(theirs):
            pairs.append(ScorePair(part.name.removeprefix(f"{group}/"), theirs, ours, part.accuracy.counts.scored))
    return sorted(pairs, key=lambda pair: (pair.branch - pair.reference, pair.name))


def pair_rows(pairs: Sequence[ScorePair]) -> list[dict[str, str]]:
    """Scores as they are drawn."""
    return [
        {"task": p.name, "reference": repr(p.reference), "branch": repr(p.branch), "items": str(p.items)} for p in pairs
    ]


def point_rows(points: Sequence[RecoveryPoint], what: str) -> list[dict[str, str]]:
    """Recoveries as they are drawn; a bound that is not identified is empty."""
    return [
        {
            what: point.name,
            "recovery": repr(point.value),
            "lower": "" if point.lower is None else repr(point.lower),
            "upper": "" if point.upper is None else repr(point.upper),
        }
        for point in points
    ]


def flip_rows(flips: Iterable[Flip]) -> list[dict[str, str]]:
    """One row of plain text per flip."""
    return [
        {
            "direction": "lost" if flip.direction == "regression" else "gained",
            "group": flip.group,
            "task": flip.stratum,
            "key": flip.item_key,
            "reference": number(flip.reference.score),
            "branch": number(flip.branch.score),
            "reference margin, nats": number(flip.reference_margin),
            "branch margin, nats": number(flip.branch_margin),
        }
        for flip in flips
    ]


def answer_choices(flip: Flip) -> list[Choice]:
    """How likely each deployment held each answer that it could choose, among them; empty where it could say anything.

    The shares are those of the likelihoods among the choices alone, so that long answers do not look impossible.
    """
    sides = [_shares(answer.detail.get("log_likelihoods"), answer.text) for answer in (flip.reference, flip.branch)]
    names = dict.fromkeys(name for side in sides for name in side)
    return [Choice(name, sides[0].get(name), sides[1].get(name)) for name in names]


def _shares(found: object, said: str | None) -> dict[str, Held]:
    if not isinstance(found, dict):
        return {}
    values = {str(name): float(value) for name, value in found.items() if isinstance(value, int | float | str)}
    best = max((value for value in values.values() if math.isfinite(value)), default=None)
    if best is None:
        return {}
    weights = {name: math.exp(value - best) if math.isfinite(value) else 0.0 for name, value in values.items()}
    total = sum(weights.values())
    return {
        name: Held(weight / total, f"{100 * weight / total:.3g} % ({number(values[name])} nats)", name == said)
        for name, weight in weights.items()
    }


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
