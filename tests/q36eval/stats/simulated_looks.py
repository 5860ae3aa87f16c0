"""Margin tests of many simulated branches at once, at every look: the same wealth as `margin_test`'s, as arrays."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from q36eval.stats._betting import (
    EAGER,
    EVEN,
    FAIL_MULTIPLES,
    PASS_MULTIPLES,
    PRIOR_CHANGE,
    BlockTotals,
    bets,
    shared_stake,
    tamed,
)
from q36eval.stats._contrast import Array
from q36eval.stats._likelihood import LEAST_EXPECTED, effective_clusters, p_value
from q36eval.stats._margin import MarginLike, loss_limit
from q36eval.stats._scheduled import DEFAULT_SHARES, LookShares


@dataclass(frozen=True)
class Kinds:
    """The kinds of clusters that occur, [K] each: sums of scores in [0, 1] of branch and reference, and units.

    `largest` is the size that weights are capped at, and `by_block` whether bets are fixed block by block. Where items
    are drawn by the reference's margin, `weights` [K] say what a unit of each kind counts in the blocks up to
    `last_bet` and `expected_changes` [K] the changed answers per unit that were assumed (`records.Schedule`); `largest`
    and `cut_share`, the share of all units beyond it, are then of weighted sizes. `last_look` is False for a rule that
    bets alone.
    """

    branch: Array
    reference: Array
    units: Array
    largest: float
    by_block: bool = True
    cut_share: float = 0.0
    weights: Array | None = None
    expected_changes: Array | None = None
    last_bet: int | None = None
    last_look: bool = True
    right_share: float = 1.0
    """What the reference gets right of all units planned, as far as the plan says it."""


@dataclass(frozen=True)
class Side:
    """One hypothesis: `gains` [K] of its opponent where bets are placed, with capped sizes, the most a cluster can
    lose, the priors over constant bets and the multiples of planned ones. `weighted` are the gains without capped sizes
    as units count there, and `plain` those of a look at everything."""

    gains: Array
    weighted: Array
    plain: Array
    largest_loss: float
    shape: float
    multiples: Array


Looker = Callable[[Array], tuple[Array, Array]]
"""`looks` of `margin_looks`, or of another rule that it is compared with."""


def margin_looks(kinds: Kinds, margin: MarginLike, shares: LookShares = DEFAULT_SHARES) -> Looker:
    """A function from counts [S, B, K] of each kind in each block to p_pass and p_fail [S, B] after each block.

    The margin is a `min_recovery`, or a `max_increase` of a score of which higher is better, and lies in (0, 1). The
    last block is the planned end.
    """
    limit = loss_limit(margin)
    recovery = margin.kind == "min_recovery"
    per_unit = limit * kinds.right_share if recovery else limit
    weights = np.ones_like(kinds.units) if kinds.weights is None else kinds.weights
    sizes = weights * kinds.units
    kept = np.minimum(1.0, kinds.largest / sizes) * weights
    if recovery:
        plain = kinds.branch - margin.value * kinds.reference
        worst, edges = (margin.value, 1.0), limit * kinds.reference
    else:
        plain = limit * kinds.units - (kinds.reference - kinds.branch)
        worst, edges = (1.0 - limit, 1.0 + limit), limit * kinds.units
    # what is cut off counts at its worst: a kept unit must then lie so much further inside
    charge = kinds.cut_share / (1.0 - kinds.cut_share)
    sides = tuple(
        Side(
            sign * kept * plain - charge * most * kept * kinds.units,
            sign * weights * plain,
            sign * plain,
            most * (1.0 + charge) * kinds.largest,
            shape,
            multiples,
        )
        for sign, most, shape, multiples in (
            (1.0, worst[0], EAGER, PASS_MULTIPLES),
            (-1.0, worst[1], EVEN, FAIL_MULTIPLES),
        )
    )
    kept_sizes = kept * kinds.units
    changes = kept * (kinds.branch - kinds.reference)
    expected = PRIOR_CHANGE if kinds.expected_changes is None else kinds.expected_changes
    rows = (np.ones_like(sizes), kept_sizes, expected * kept_sizes**2, changes**2, kept * edges)

    def looks(counts: Array) -> tuple[Array, Array]:
        end = counts.shape[1] - 1
        last_bet = end if kinds.last_bet is None else min(kinds.last_bet, end)
        bet_on = counts[:, : last_bet + 1]
        best = BlockTotals(*(bet_on @ row for row in rows)).best_bets(limit, 1.0) if kinds.by_block else None
        taken = _taken(kinds, per_unit, shares, counts[:1], last_bet)
        p_pass, p_fail = (_p_values(side, counts, last_bet, best, taken) for side in sides)
        return p_pass, p_fail

    return looks


def _taken(kinds: Kinds, limit: float, shares: LookShares, counts: Array, last_bet: int) -> LookShares:
    """Which looks there are: as `ScheduledMean` says of the same plan."""
    if not kinds.last_look:
        return LookShares(1.0, 0.0)
    sizes = kinds.units if kinds.weights is None else kinds.weights * kinds.units
    first, whole = counts[0, : last_bet + 1].sum(axis=0), counts[0].sum(axis=0)
    drawn = kinds.last_bet is not None
    enough = effective_clusters(first @ sizes, first @ sizes**2) * limit >= LEAST_EXPECTED
    midway = shares.midway if drawn and enough else 0.0
    at_end = effective_clusters(whole @ kinds.units, whole @ kinds.units**2) * limit >= LEAST_EXPECTED
    return LookShares(shares.bets, midway) if at_end else LookShares(1.0 - midway, midway)


def _p_values(side: Side, counts: Array, last_bet: int, best: Array | None, taken: LookShares) -> Array:
    """p-values [S, B] of one side after each block; 1 where the plain mean contradicts it."""
    bet_on, so_far = counts[:, : last_bet + 1], np.cumsum(counts, axis=1)
    first = so_far[:, : last_bet + 1]
    scaled = np.maximum(side.gains / side.largest_loss, -1.0)
    log_wealth = _log_mean(first @ np.log1p(np.outer(scaled, bets(side.shape))))
    if best is not None:
        growth = []
        for multiple in side.multiples:
            planned = tamed(multiple * best * side.largest_loss)
            growth.append((bet_on * np.log1p(planned[..., None] * scaled)).sum(axis=-1).cumsum(axis=1))
        log_wealth = shared_stake(log_wealth, _log_mean(np.stack(growth, axis=-1)))
    p = np.ones(so_far.shape[:2])
    p[:, : last_bet + 1] = np.exp(-np.maximum(0.0, log_wealth)) / taken.bets
    p[:, last_bet + 1 :] = p[:, [last_bet]]
    if taken.midway:
        midway = p_value(side.weighted, first[:, -1]) / taken.midway
        p[:, last_bet:] = np.minimum(p[:, last_bet:], midway[:, None])
    if taken.last:
        p[:, -1] = np.minimum(p[:, -1], p_value(side.plain, so_far[:, -1]) / taken.last)
    inside = np.concatenate([first @ side.weighted, so_far[:, last_bet + 1 :] @ side.plain], axis=1) > 0
    inside[:, -1] = so_far[:, -1] @ side.plain > 0
    return np.where(inside, np.minimum(p, 1.0), 1.0)


def _log_mean(logs: Array) -> Array:
    """Log of the mean over the last axis."""
    top: Array = logs.max(axis=-1)
    return top + np.log(np.exp(logs - top[..., None]).mean(axis=-1))
