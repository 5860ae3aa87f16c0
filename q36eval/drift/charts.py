"""Self-starting control charts of many series at once: EWMA, CUSUM and the greatest change of level. Pure; numpy only.

Nothing is known beforehand but each run's own interval: a series' level and spread are learned as it goes, and every run
is held against those before it alone. If the runs of a stable series are independent and normal about one level, with any
spread, the residuals are independent standard normal from the third run on (Hawkins 1987, The Statistician 36; Quesenberry
1991, J. Quality Technology 23). The change of level is the two-sample t over every split of the series, which does not
learn the move away as residuals do (Hawkins, Qiu & Kang 2003, J. Quality Technology 35).

A series that repeats to the last bit has no spread. So every statistic is the lesser of two: the one in the series' own
spread, and the one in a least spread, `LEAST_SPREAD` standard errors of a run. The lesser of a standard normal statistic
and anything else never alarms more often than the standard normal one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit, ndtr

from q36eval.drift.limits import CUSUM_ALLOWANCE, EWMA_WEIGHT, Limits

Array = NDArray[np.float64]

LEAST_SPREAD = 0.5
"""Standard errors of a run. Runs share their items, so they may scatter far less than their intervals say; a move of less
than this is called none, however often it repeats: other items would have moved the figure further."""

RESIDUAL_CAP = 3.0
"""What one residual may count for in the EWMA and the CUSUM, so that one run far off is an outlier and not yet a drift."""

LOOK_BACK = 60
"""How many runs back a change of level is looked for."""

_GREATEST = 8.0
"""Standard normal values beyond this have no tail left in float64."""


@dataclass(frozen=True)
class Spread:
    """What earlier, finished stretches of the same series say of its spread: squares about their levels, and freedom."""

    squares: Array
    freedom: Array


@dataclass(frozen=True)
class Charts:
    """All arrays are [runs, series], NaN where a chart says nothing; `split` is the first run of the greatest change."""

    expected: Array
    scale: Array
    residual: Array
    ewma: Array
    ewma_limit: Array
    cusum_high: Array
    cusum_low: Array
    shift: Array
    split: NDArray[np.int64]
    signal: NDArray[np.bool_]


def control_charts(effects: Array, least: Array, limits: Limits, before: Spread | None = None) -> Charts:
    """Charts of every column of `effects` [runs, series], oldest run first; a column may end early in NaN.

    `least` [runs, series] is the least spread of each run in units of the effect, above 0.
    """
    runs, series = effects.shape
    found = np.full((8, runs, series), np.nan)
    split = np.zeros((runs, series), dtype=np.int64)
    signal = np.zeros((runs, series), dtype=bool)
    spread = before or Spread(np.zeros(series), np.zeros(series))
    effects = effects - effects[0]  # so that squares of what repeats to the last bit are 0
    level, squares, high, low, ewma, charted = (np.zeros(series) for _ in range(6))
    for run in range(runs):
        freedom = max(run - 1, 0) + spread.freedom
        residual, scale = _residual(effects[run], level, squares + spread.squares, freedom, run, least[run])
        valid = np.isfinite(residual)
        counted = np.clip(np.where(valid, residual, 0.0), -RESIDUAL_CAP, RESIDUAL_CAP)
        charted = charted + valid
        ewma = (1 - EWMA_WEIGHT) * ewma + EWMA_WEIGHT * counted
        high = np.maximum(0.0, high + counted - CUSUM_ALLOWANCE)
        low = np.maximum(0.0, low - counted - CUSUM_ALLOWANCE)
        ewma_limit = limits.ewma * np.sqrt(
            EWMA_WEIGHT / (2 - EWMA_WEIGHT) * (1 - (1 - EWMA_WEIGHT) ** (2 * np.maximum(charted, 1)))
        )
        shift, split[run] = _greatest_change(effects[: run + 1], least[: run + 1], spread)
        beyond = (np.abs(ewma) > ewma_limit) | (np.maximum(high, low) > limits.cusum) | (np.abs(shift) > limits.shift)
        signal[run] = valid & beyond
        for place, row in enumerate((level, scale, residual, ewma, ewma_limit, high, low, shift)):
            found[place, run] = np.where(valid, row, np.nan)
        step = effects[run] - level
        level = level + step / (run + 1)
        squares = squares + step * (effects[run] - level)
    return Charts(*found, split=split, signal=signal)


def _residual(effect: Array, level: Array, squares: Array, freedom: Array, learned: int, least: Array) -> tuple[Array, Array]:
    """The run's distance from the level of the `learned` runs before it, in standard normal units, and the spread used."""
    if learned == 0:
        return np.full_like(effect, np.nan), np.full_like(effect, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt(squares / freedom)
        distance = (effect - level) / np.sqrt(1 + 1 / learned)
        own = _standard_normal(distance / spread, freedom)
        own = np.where(distance == 0, 0.0, own)
        residual = np.sign(distance) * np.minimum(np.abs(own), np.abs(distance) / least)
    return np.where(freedom >= 1, residual, np.nan), np.fmax(spread, least)


def _standard_normal(t: Array, freedom: Array) -> Array:
    """Student's t as the standard normal value of the same tail, its size alone."""
    tail: Array = -ndtri(stdtr(np.maximum(freedom, 1), -np.abs(t)))
    return tail


def _greatest_change(effects: Array, least: Array, spread: Spread) -> tuple[Array, NDArray[np.int64]]:
    """The greatest change of level over all splits of the runs so far, in standard normal units, and its first run.

    On either side the run that speaks loudest for the change is left out of the mean, but not of the spread: one run
    alone is neither a level nor a change. A change of less than the least spread is none.
    """
    runs, series = effects.shape
    first = np.arange(max(2, runs - LOOK_BACK), runs - 1)
    if not len(first):
        return np.zeros(series), np.zeros(series, dtype=np.int64)
    change, squares = _changes(effects, first)
    kept = (first[:, None] - 1.0, runs - first[:, None] - 1.0)
    error = np.sqrt(1 / kept[0] + 1 / kept[1])
    floor = np.sqrt(np.mean(least**2, axis=0))
    freedom = runs - 2 + spread.freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(change == 0, 0.0, np.abs(change) / error / np.sqrt((squares + spread.squares) / freedom))
    normal = np.where(np.abs(change) >= floor, np.abs(change) / (error * floor), 0.0)
    same_tail = stdtrit(freedom, ndtr(np.minimum(normal, _GREATEST)))
    lesser = np.minimum(t, same_tail)
    best = np.argmax(lesser, axis=0)[None]
    size = _standard_normal(np.take_along_axis(lesser, best, axis=0)[0], freedom)
    return np.sign(np.take_along_axis(change, best, axis=0)[0]) * size, first[best[0]]


def _changes(effects: Array, first: NDArray[np.int64]) -> tuple[Array, Array]:
    """For each split, before run `first`: the change of level, 0 where a side's own loudest run made it; and the squares
    about both levels [splits, series]."""
    runs = len(effects)
    before, after = first[:, None].astype(float), (runs - first)[:, None].astype(float)
    sums, squares = np.cumsum(effects, axis=0), np.cumsum(effects**2, axis=0)
    sum_before, sum_after = sums[first - 1], sums[-1] - sums[first - 1]
    highest = np.maximum.accumulate(effects, axis=0)[first - 1], np.maximum.accumulate(effects[::-1], axis=0)[::-1][first]
    lowest = np.minimum.accumulate(effects, axis=0)[first - 1], np.minimum.accumulate(effects[::-1], axis=0)[::-1][first]
    rises = sum_after / after > sum_before / before
    level_before = (sum_before - np.where(rises, lowest[0], highest[0])) / (before - 1)
    level_after = (sum_after - np.where(rises, highest[1], lowest[1])) / (after - 1)
    change = np.where((level_after > level_before) == rises, level_after - level_before, 0.0)
    within = squares[-1] - sum_before**2 / before - sum_after**2 / after
    return change, np.maximum(within, 0.0)
