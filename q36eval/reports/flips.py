"""Items that turned: right under the reference and wrong under the branch, and the reverse. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.records import Clusters, Direction, Measurement, ProbeName
from q36eval.reports.evals_figures import EvalsFigures


@dataclass(frozen=True)
class Flips:
    """`lost` items only the reference got right, `gained` only the branch, `of` those scored under both."""

    name: str
    lost: int
    gained: int
    of: int


def flips(measurements: Sequence[Measurement]) -> list[Flips]:
    """Of every group of eval tasks, then of every family of canaries and their lanes; where items can be told apart."""
    figures = EvalsFigures(measurements)
    counted = [_flips_of(f"evals: {group.name}", group.accuracy) for group in figures.groups()]
    rates = [m for m in measurements if m.probe is ProbeName.CANARIES and m.metric == "failure_rate"]
    counted += [_flips_of(f"canaries: {m.slice}", m) for m in rates]
    return [one for one in counted if one is not None]


def _flips_of(name: str, measurement: Measurement) -> Flips | None:
    """Counted as `ItemOutcome.flip` counts; None where a cluster holds several items."""
    clusters = measurement.clusters
    if clusters is None or clusters.reference is None or max(clusters.units, default=0) > 1:
        return None
    branch, reference = _rights(clusters, measurement.direction)
    pairs = list(zip(branch, reference, strict=True))
    return Flips(
        name,
        lost=sum(theirs == 1.0 and mine < 1.0 for mine, theirs in pairs),
        gained=sum(mine == 1.0 and theirs < 1.0 for mine, theirs in pairs),
        of=len(pairs),
    )


def _rights(clusters: Clusters, direction: Direction) -> tuple[list[float], list[float]]:
    """Scores of the scored items under branch and reference, 1 = right, whichever way the metric counts."""
    assert clusters.reference is not None, "the caller has looked"
    scored = [i for i, units in enumerate(clusters.units) if units]
    sides = [[column[i] for i in scored] for column in (clusters.branch, clusters.reference)]
    if direction is Direction.LOWER_IS_BETTER:
        sides = [[1.0 - value for value in side] for side in sides]
    return sides[0], sides[1]
