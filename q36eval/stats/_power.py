"""What a set of items can show about a margin, before a branch is asked anything.

By simulation of branches under the margin test itself (`_gates`), seeded. A simulated branch flips right answers and
wrong ones independently, each at its own rate; a look is taken after every block, and the first verdict stops it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q36eval.records import Clusters, Direction, Estimator, Schedule
from q36eval.stats._contrast import Array, Columns, columns_of, size_cap
from q36eval.stats._gates import Kinds, Looker, exact_looks, margin_looks
from q36eval.stats._margin import MarginKind, MarginLike, loss_limit, margin_test
from q36eval.stats._pairs import PairedProportions, pairs_of
from q36eval.stats._scheduled import planned_evidence

SIMULATIONS = 400
"""A share of 95 % is then known to 1.1 points (one standard error)."""

SEED = 20_261_121
LOOKS = 24
"""More blocks are simulated as this many: looks fewer than there will be detect a little less, never more."""

BISECTION_STEPS = 5
USUAL_FLIPS = 0.02
"""Share of answers that a branch without loss is taken to change, half of them each way, where nothing is said."""


LEAST_LIMIT, GREATEST_LIMIT = 1e-5, 0.1
"""Between which the tightest limit is looked for."""


@dataclass(frozen=True)
class Power:
    """What a criterion can show with the items planned.

    `can_show`: whether a branch that answers everything as the reference does would PASS. `passes` is the probability
    of PASS of a branch without loss that changes a share `flips` of its answers. `detected` are the smallest losses
    that FAIL with each probability, in the unit of the margin's loss, None where even a branch that gets everything
    wrong is not; `most_flips` the largest share of changed answers at which a branch without loss passes 19 times in
    20, 0.0 where none is.
    """

    can_show: bool
    flips: float
    passes: float
    detected: dict[float, float | None]
    most_flips: float


def as_expected(units: Sequence[int], score: float, schedule: Schedule | None = None) -> Clusters:
    """Clusters of `units` items each of which branch and reference get the share `score` right, spread evenly."""
    right = np.diff(np.floor(score * np.cumsum([0, *units]) + 0.5))
    sums = tuple(float(value) for value in np.minimum(right, units))
    return Clusters(
        units=tuple(units), branch=sums, reference=sums, errored=(0,) * len(units), bounds=(0.0, 1.0), schedule=schedule
    )


def can_show(
    identical: Clusters,
    margin: MarginLike,
    *,
    confidence: float,
    direction: Direction,
    estimator: Estimator = "paired_mean",
) -> bool:
    """Whether a branch that answers everything as the reference does would PASS: if not, no branch can.

    `identical` are the clusters of the reference beside itself, or what is expected of them (`as_expected`). Exact.
    """
    test = margin_test(identical, estimator, margin, direction=direction, level=2 * confidence - 1)
    return test.p_pass <= 1.0 - confidence


def tightest_limit(
    identical: Clusters,
    kind: MarginKind,
    *,
    confidence: float,
    direction: Direction = Direction.HIGHER_IS_BETTER,
    estimator: Estimator = "paired_mean",
) -> float | None:
    """The least loss (`loss_limit`) that these items can show at all, to 2 %; None where not even a tenth."""

    def shown(limit: float) -> bool:
        margin = _Limit(kind, 1.0 - limit if kind == "min_recovery" else limit)
        return can_show(identical, margin, confidence=confidence, direction=direction, estimator=estimator)

    low, high = LEAST_LIMIT, GREATEST_LIMIT
    if not shown(high):
        return None
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _Limit:
    kind: MarginKind
    value: float


def power(
    identical: Clusters,
    margin: MarginLike,
    *,
    confidence: float,
    alpha: float,
    criteria: int = 1,
    direction: Direction = Direction.HIGHER_IS_BETTER,
    flips: float = USUAL_FLIPS,
    probabilities: Sequence[float] = (0.8, 0.95),
    estimator: Estimator = "paired_mean",
) -> Power:
    """The power of one criterion over bounded scores in [0, 1], paired by item; sums are rounded to whole items.

    FAIL is as for `resolved_early`: `alpha` over `criteria`. A branch that loses d beyond flips of rate f gets f/2 + d
    of all answers wrong that were right, and f/2 right that were wrong, as far as there are such.

    Raises:
        ValueError: a margin that is no `min_recovery` or `max_increase` in (0, 1), clusters without a reference or with
            errored items, a recovery where nothing is right.
    """
    limit = loss_limit(margin)
    if margin.kind not in ("min_recovery", "max_increase") or not 0.0 < limit < 1.0:
        raise ValueError("power is known for a min_recovery or a max_increase between 0 and 1")
    exact = estimator == "paired_proportions" and isinstance(pairs_of(identical), PairedProportions)
    last_look = planned_evidence(identical)
    branches = _Branches(_right_answers(columns_of(identical), direction), margin, exact=exact, last_look=last_look)
    if branches.score == 0.0:
        raise ValueError("what the reference never gets right, no branch can lose")
    unit = branches.score if margin.kind == "min_recovery" else 1.0
    thresholds = (1.0 - confidence, alpha / criteria)
    shown = can_show(identical, margin, confidence=confidence, direction=direction, estimator=estimator)

    def fails(loss: float) -> float:
        return branches.verdicts(flips, loss * unit, thresholds)[1]

    def passes(rate: float) -> float:
        return branches.verdicts(rate, 0.0, thresholds)[0]

    worst = branches.score / unit
    detected = {share: _least(lambda loss: fails(loss) >= share, limit, worst, limit / 2) for share in probabilities}  # noqa: B023
    most = 2.0 * min(branches.score, 1.0 - branches.score)
    too_many = _least(lambda rate: passes(rate) < 0.95, 0.0, most, USUAL_FLIPS / 2) if shown else 0.0
    return Power(shown, flips, passes(flips), detected, most if too_many is None else too_many)


def _least(holds: Callable[[float], bool], low: float, high: float, step: float) -> float | None:
    """Where `holds`, false below and true above, turns true between `low` and `high`; None where it does not.

    In steps from `low`, each twice as long as the one before, then by bisection of the last.
    """
    while low + step < high and not holds(low + step):
        low, step = low + step, 2 * step
    if low + step >= high and not holds(high):
        return None
    high = min(low + step, high)
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _right_answers(columns: Columns, direction: Direction) -> tuple[Columns, Array]:
    """The columns and the right answers of each row."""
    if columns.reference is None or columns.bounds != (0.0, 1.0):
        raise ValueError("power is known for scores between 0 and 1 that have a reference")
    if not columns.counts.size or not columns.units.all():
        raise ValueError("power is known for clusters of which all items are scored")
    right = np.round(columns.reference)
    return columns, right if direction is Direction.HIGHER_IS_BETTER else columns.units - right


class _Branches:
    """Branches that answer the same clusters, drawn with the same seed whatever their rates."""

    def __init__(
        self, planned: tuple[Columns, Array], margin: MarginLike, *, exact: bool, last_look: bool = False
    ) -> None:
        columns, right = planned
        self._layouts, kind = np.unique(np.stack([columns.units, right]), axis=1, return_inverse=True)
        blocks = np.unique(columns.blocks, return_inverse=True)[1]
        merged = blocks * LOOKS // max(LOOKS, int(blocks.max()) + 1)
        self._clusters = np.zeros((int(merged.max()) + 1, self._layouts.shape[1]), dtype=np.int64)
        np.add.at(self._clusters, (merged, kind.reshape(-1)), columns.counts.astype(np.int64))
        self.score = float(columns.counts @ right) / float(columns.counts @ columns.units)
        largest = columns.largest or size_cap(columns.units, columns.counts)
        kinds = self._kinds(largest, by_block=columns.largest is not None, last_look=last_look)
        self._looks: Looker = exact_looks(kinds, loss_limit(margin)) if exact else margin_looks(kinds, margin)

    def _kinds(self, largest: float, *, by_block: bool, last_look: bool) -> Kinds:
        rows = [(b, right, units) for units, right in self._layouts.T for b in np.arange(units + 1)]
        branch, reference, units = np.array(rows, dtype=np.float64).T
        return Kinds(branch, reference, units, largest, by_block, last_look=last_look)

    def verdicts(self, flips: float, loss: float, thresholds: tuple[float, float]) -> tuple[float, float]:
        """The shares of branches that PASS and that FAIL, losing `loss` of all answers beyond `flips` each way."""
        rng = np.random.default_rng(SEED)
        gained = min(flips / 2, 1.0 - self.score)
        lost = min(gained + loss, self.score)
        rates = (lost / self.score if self.score else 0.0, gained / (1.0 - self.score) if self.score < 1.0 else 0.0)
        drawn = [
            rng.multinomial(clusters, _outcomes(int(units), int(right), *rates), size=(SIMULATIONS, len(clusters)))
            for clusters, (units, right) in zip(self._clusters.T, self._layouts.T, strict=True)
        ]
        p_pass, p_fail = self._looks(np.concatenate(drawn, axis=-1).astype(np.float64))
        first_pass, first_fail = (_first(p <= t) for p, t in zip((p_pass, p_fail), thresholds, strict=True))
        never = p_pass.shape[1]
        return (
            float(((first_pass < never) & (first_pass < first_fail)).mean()),
            float(((first_fail < never) & (first_fail < first_pass)).mean()),
        )


def _first(reached: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The first look [S] at which a row of `reached` [S, B] is true, B where none is."""
    first: NDArray[np.intp] = np.where(reached.any(axis=1), reached.argmax(axis=1), reached.shape[1])
    return first


def _outcomes(units: int, right: int, lost: float, gained: float) -> Array:
    """Probabilities of 0 to `units` right answers where each right one is lost and each wrong one gained."""
    kept: Array = np.ones(1)
    for _ in range(right):
        kept = np.convolve(kept, [lost, 1.0 - lost])
    for _ in range(units - right):
        kept = np.convolve(kept, [1.0 - gained, gained])
    shares: Array = kept / kept.sum()
    return shares
