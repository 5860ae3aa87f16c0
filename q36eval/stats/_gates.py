"""Margin tests of many simulated branches at once, at every look: the same wealth as `margin_test`'s, as arrays."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from q36eval.stats._betting import EAGER, EVEN, bets, shared_stake, tamed
from q36eval.stats._blocks import FAIL_MULTIPLES, PASS_MULTIPLES, BlockTotals
from q36eval.stats._contrast import Array
from q36eval.stats._margin import MarginLike, loss_limit
from q36eval.stats._pairs import PairedProportions


@dataclass(frozen=True)
class Kinds:
    """The kinds of clusters that occur, [K] each: sums of scores in [0, 1] of branch and reference, and units.

    `largest` is the size that weights are capped at, and `by_block` whether bets are fixed block by block.
    """

    branch: Array
    reference: Array
    units: Array
    largest: float
    by_block: bool = True


@dataclass(frozen=True)
class Side:
    """One hypothesis: `gains` [K] of its opponent, the most a cluster can lose, the priors over constant bets and the
    multiples of planned ones, and `plain` [K], the gains without capped sizes."""

    gains: Array
    plain: Array
    largest_loss: float
    shape: float
    multiples: Array


class Looker(Protocol):
    """`looks` of `margin_looks`, or of another rule that it is compared with."""

    def __call__(self, counts: Array) -> tuple[Array, Array]: ...


def margin_looks(kinds: Kinds, margin: MarginLike) -> Looker:
    """A function from counts [S, B, K] of each kind in each block to p_pass and p_fail [S, B] after each block.

    The margin is a `min_recovery`, or a `max_increase` of a score of which higher is better, and lies in (0, 1).
    """
    limit = loss_limit(margin)
    recovery = margin.kind == "min_recovery"
    weights = np.minimum(1.0, kinds.largest / kinds.units)
    if recovery:
        plain = kinds.branch - margin.value * kinds.reference
        worst, edges = (margin.value, 1.0), limit * kinds.reference
    else:
        plain = limit * kinds.units - (kinds.reference - kinds.branch)
        worst, edges = (1.0 - limit, 1.0 + limit), limit * kinds.units
    sides = (
        Side(weights * plain, plain, worst[0] * kinds.largest, EAGER, PASS_MULTIPLES),
        Side(-weights * plain, -plain, worst[1] * kinds.largest, EVEN, FAIL_MULTIPLES),
    )
    sizes = weights * kinds.units
    changes = weights * (kinds.branch - kinds.reference)
    rows = (np.ones_like(sizes), sizes, sizes**2, changes**2, weights * edges)

    def looks(counts: Array) -> tuple[Array, Array]:
        best = BlockTotals(*(counts @ row for row in rows)).best_bets(limit, 1.0) if kinds.by_block else None
        p_pass, p_fail = (_p_values(side, counts, best) for side in sides)
        return p_pass, p_fail

    return looks


def exact_looks(kinds: Kinds, limit: float) -> Looker:
    """As `margin_looks`, of single items at one look, by the exact test of a `max_increase`."""
    known: dict[tuple[int, int, int], tuple[float, float]] = {}

    def p_values(lost: int, gained: int, items: int) -> tuple[float, float]:
        if (lost, gained, items) not in known:
            pairs = PairedProportions(lost, gained, items)
            known[lost, gained, items] = pairs.p_at_least(limit), pairs.p_at_most(limit)
        return known[lost, gained, items]

    def looks(counts: Array) -> tuple[Array, Array]:
        changes = kinds.branch - kinds.reference
        columns = np.stack([counts @ (changes < 0), counts @ (changes > 0), counts @ kinds.units], axis=-1)
        rows = columns.reshape(-1, 3).astype(np.int64).tolist()
        both = np.array([p_values(*row) for row in rows]).reshape(*counts.shape[:2], 2)
        return both[..., 0], both[..., 1]

    return looks


def _p_values(side: Side, counts: Array, best: Array | None) -> Array:
    """p-values [S, B] of one side after each block; 1 where the plain mean contradicts it."""
    so_far = np.cumsum(counts, axis=1)
    scaled = np.maximum(side.gains / side.largest_loss, -1.0)
    log_wealth = _log_mean(so_far @ np.log1p(np.outer(scaled, bets(side.shape))))
    if best is not None:
        growth = []
        for multiple in side.multiples:
            shares = tamed(multiple * best * side.largest_loss)
            growth.append((counts * np.log1p(shares[..., None] * scaled)).sum(axis=-1).cumsum(axis=1))
        log_wealth = shared_stake(log_wealth, _log_mean(np.stack(growth, axis=-1)))
    return np.where(so_far @ side.plain > 0, np.exp(-np.maximum(0.0, log_wealth)), 1.0)


def _log_mean(logs: Array) -> Array:
    """Log of the mean over the last axis."""
    top: Array = logs.max(axis=-1)
    mean: Array = top + np.log(np.exp(logs - top[..., None]).mean(axis=-1))
    return mean
