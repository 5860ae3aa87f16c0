"""Self-starting control charts of many series at once: EWMA, CUSUM and the greatest change of level. Pure; numpy only.

Nothing is known beforehand but each run's own interval: a series' level and spread are learned as it goes, and every
run is held against those before it alone. If the runs of a stable series are independent and normal about one level,
with any spread, the residuals are independent standard normal from the third run on (Hawkins 1987, The Statistician 36;
Quesenberry 1991, J. Quality Technology 23). The change of level is the two-sample t over every split of the series,
which does not learn the move away as residuals do (Hawkins, Qiu & Kang 2003, J. Quality Technology 35).

A series that repeats to the last bit has no spread. So every statistic is the lesser of two: the one in the series'
own spread, and the one in a least spread, `LEAST_SPREAD` standard errors of a run. The lesser of a standard normal
statistic and anything else never alarms more often than the standard normal one.

`limits_for` says how far each chart may go before it signals, for a wanted in-control run length.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, stdtr

IN_CONTROL_RUN_LENGTH = 1_000.0
"""Runs until a stable branch raises a false alarm, on average: about 5.8 % of stable histories of 60 runs."""

EWMA_WEIGHT = 0.2
"""The newest residual's share in the EWMA; 0.05 to 0.25 is usual, small for small moves (Lucas & Saccucci 1990)."""

CUSUM_ALLOWANCE = 0.5
"""What a residual must exceed to count: half a move of one standard deviation, which it then finds fastest."""

CHARTS = 3
_NODES = 60


@dataclass(frozen=True)
class Limits:
    """Limits of the three charts of one metric, in standard normal units; `run_length` is that of all three together.

    `ewma` is the multiple of the EWMA's own standard deviation.
    """

    run_length: float
    ewma: float
    cusum: float
    shift: float


@cache
def limits_for(metrics: int) -> Limits:
    """Limits under which `metrics` stable metrics raise one false alarm in `IN_CONTROL_RUN_LENGTH` runs, or fewer.

    Every chart of every metric gets an equal share of the rate (Bonferroni), however they are correlated.
    """
    each = IN_CONTROL_RUN_LENGTH * max(1, metrics)
    chart = each * CHARTS
    return Limits(each, _ewma_limit(chart), _cusum_limit(chart), _shift_limit(chart))


def _cusum_limit(run_length: float) -> float:
    """Two one-sided CUSUMs, each of twice the run length; ARL by Siegmund (1985), Sequential Analysis, eq. 2.57."""
    k = CUSUM_ALLOWANCE

    def excess(limit: float) -> float:
        b = 2 * k * (limit + 1.166)
        return (math.exp(b) - b - 1) / (2 * k * k) - 2 * run_length

    return float(brentq(excess, 0.0, 60.0))


def _ewma_limit(run_length: float) -> float:
    """ARL from the integral equation of Crowder (1987), Technometrics 29(4), by Gauss-Legendre quadrature."""
    spread = math.sqrt(EWMA_WEIGHT / (2 - EWMA_WEIGHT))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)

    def excess(multiple: float) -> float:
        at, mass = nodes * multiple * spread, weights * multiple * spread
        density = _normal((at[None, :] - (1 - EWMA_WEIGHT) * at[:, None]) / EWMA_WEIGHT) / EWMA_WEIGHT
        from_each = np.linalg.solve(np.eye(_NODES) - density * mass, np.ones(_NODES))
        from_zero = 1 + (_normal(at / EWMA_WEIGHT) / EWMA_WEIGHT * mass) @ from_each
        return math.log(from_zero / run_length)

    return float(brentq(excess, 1.0, 7.0))


def _shift_limit(run_length: float) -> float:
    """ARL of the greatest standardised change, Siegmund & Venkatraman (1995), Ann. Statist. 23(1), theorem 1.

    Their discreteness correction nu(x) is close to exp(-0.583 x); the integral of x nu(x)^2 is then 1 / 1.166^2.
    """
    integral = 1 / 1.166**2

    def excess(limit: float) -> float:
        return 0.5 * math.log(2 * math.pi) + limit * limit / 2 - math.log(limit * integral) - math.log(run_length)

    return float(brentq(excess, 1.5, 12.0))


def _normal(
    at: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    density: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    return density


Array = NDArray[np.float64]

LEAST_SPREAD = 0.5
"""Standard errors of a run. Runs share their items, so they may scatter far less than their intervals say; a change of
level of less than this is called none, however often it repeats: other items would have moved the figure further."""

RESIDUAL_CAP = 3.0
"""What one residual may count for in the EWMA and the CUSUM, so that one run far off is an outlier, not yet a drift."""

LOOK_BACK = 60
"""How many runs back a change of level is looked for."""


@dataclass(frozen=True)
class Spread:
    """What earlier stretches of the same series say of its spread: squares about their levels, and freedom."""

    squares: Array
    freedom: Array


@dataclass(frozen=True)
class Charts:
    """Arrays [runs, series], NaN where a chart says nothing; `split` is the first run of the greatest change."""

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
    series = effects.shape[1]
    spread = before or Spread(np.zeros(series), np.zeros(series))
    effects = effects - effects[0]  # so that squares of what repeats to the last bit are 0
    expected, scale, residual = _residuals(effects, least, spread)
    valid = np.isfinite(residual)
    counted = np.clip(np.where(valid, residual, 0.0), -RESIDUAL_CAP, RESIDUAL_CAP)
    ewma, deviation = _ewma(counted, valid)
    high, low = _cusum(counted), _cusum(-counted)
    shift, split = _greatest_changes(effects, least, spread)
    beyond = (np.abs(ewma) > limits.ewma * deviation) | (np.maximum(high, low) > limits.cusum)
    beyond = (beyond & (shift != 0)) | (np.abs(shift) > limits.shift)
    drawn = [np.where(valid, rows, np.nan) for rows in (ewma, limits.ewma * deviation, high, low, shift)]
    return Charts(expected, scale, residual, drawn[0], drawn[1], drawn[2], drawn[3], drawn[4], split, valid & beyond)


def _residuals(effects: Array, least: Array, spread: Spread) -> tuple[Array, Array, Array]:
    """Of each run: the level of the runs before it, the spread, and the residual; all NaN where that is unknown."""
    rows = np.full((3, *effects.shape), np.nan)
    level, squares = np.zeros(effects.shape[1]), np.zeros(effects.shape[1])
    for run, effect in enumerate(effects):
        freedom = max(run - 1, 0) + spread.freedom
        if run > 0:
            residual, scale = _residual(effect, level, squares + spread.squares, freedom, run, least[run])
            rows[:, run] = np.where(np.isfinite(residual), (level, scale, residual), np.nan)
        step = effect - level
        level = level + step / (run + 1)
        squares = squares + step * (effect - level)
    return rows[0], rows[1], rows[2]


def _ewma(counted: Array, valid: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The EWMA of the residuals so far, from 0, and its standard deviation, which grows with their number."""
    ewma = np.zeros_like(counted)
    for run in range(len(counted)):
        last = ewma[run - 1] if run else 0.0
        ewma[run] = np.where(valid[run], (1 - EWMA_WEIGHT) * last + EWMA_WEIGHT * counted[run], last)
    number = np.cumsum(valid, axis=0)
    variance = EWMA_WEIGHT / (2 - EWMA_WEIGHT) * (1 - (1 - EWMA_WEIGHT) ** (2 * number))
    return ewma, np.sqrt(variance)


def _cusum(counted: Array) -> Array:
    """The one-sided CUSUM of the residuals, upwards, from 0."""
    cusum = np.zeros_like(counted)
    for run in range(len(counted)):
        last = cusum[run - 1] if run else 0.0
        cusum[run] = np.maximum(0.0, last + counted[run] - CUSUM_ALLOWANCE)
    return cusum


def _residual(
    effect: Array, level: Array, squares: Array, freedom: Array, learned: int, least: Array
) -> tuple[Array, Array]:
    """The run's distance from the level of the `learned` runs before it, in standard normal units, and the spread."""
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


def _greatest_changes(effects: Array, least: Array, spread: Spread) -> tuple[Array, NDArray[np.int64]]:
    """After every run: the greatest change of level over all splits of the runs so far, in standard normal units, and
    the first run of the later side [runs, series].

    On either side the run that speaks loudest for the change is left out of the mean, but not of the spread: one run
    alone is neither a level nor a change. A change of less than the least spread is 0: then no chart signals.
    """
    runs, series = effects.shape
    floor = np.sqrt(np.array([np.mean(least[: run + 1] ** 2, axis=0) for run in range(runs)]))
    freedom = np.arange(runs)[:, None] - 1.0 + spread.freedom
    best, t, in_least, change = np.full((runs, series), -1.0), *np.zeros((3, runs, series))
    split = np.zeros((runs, series), dtype=np.int64)
    for after, changed, squares in _changes(effects):
        rows = slice(after + 1, runs)  # the runs that have two before the last `after`
        before = np.arange(2.0, runs + 1 - after)[:, None]
        error = np.sqrt(1 / (before - 1) + 1 / (after - 1))
        size = np.abs(changed)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = size / error / np.sqrt((squares + spread.squares) / freedom[rows])
            own = np.where(changed == 0, 0.0, own)
        known = np.where(size >= floor[rows], size / (error * floor[rows]), 0.0)
        value = np.minimum(_nearly_standard_normal(own, freedom[rows]), known)
        greater = np.isnan(value) | (value >= best[rows])  # of equal ones the earliest split
        for kept, newest in ((best, value), (t, own), (in_least, known), (change, changed), (split, before)):
            np.copyto(kept[rows], newest, where=greater, casting="unsafe")
    return np.sign(change) * np.minimum(_standard_normal(t, freedom), in_least), split


def _nearly_standard_normal(t: Array, freedom: Array) -> Array:
    """Wallace (1959), Ann. Math. Statist. 30, eq. 3.2: near enough to choose a split by, and much faster than exact."""
    freedom = np.maximum(freedom, 1)
    value: Array = (
        (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(np.minimum(t, 1e150) ** 2 / freedom))
    )
    return value


def _changes(effects: Array) -> Iterator[tuple[int, Array, Array]]:
    """For 2 to `LOOK_BACK` runs after a split: how many, and at every run that ends them the change of level, 0 where
    a single run made it, and the squares about both levels [runs, series].
    """
    runs = len(effects)
    sums, squares = np.cumsum(effects, axis=0), np.cumsum(effects**2, axis=0)
    highest_before, lowest_before = np.maximum.accumulate(effects, axis=0), np.minimum.accumulate(effects, axis=0)
    highest, lowest = effects.copy(), effects.copy()  # of the last `after` runs
    for after in range(2, min(LOOK_BACK, runs - 2) + 1):
        np.maximum(highest[after - 1 :], effects[: runs - after + 1], out=highest[after - 1 :])
        np.minimum(lowest[after - 1 :], effects[: runs - after + 1], out=lowest[after - 1 :])
        now, then = slice(after + 1, runs), slice(1, runs - after)
        before = np.arange(2.0, runs + 1 - after)[:, None]
        sum_before, sum_after = sums[then], sums[now] - sums[then]
        rises = sum_after / after > sum_before / before
        level_before = (sum_before - np.where(rises, lowest_before[then], highest_before[then])) / (before - 1)
        level_after = (sum_after - np.where(rises, highest[now], lowest[now])) / (after - 1)
        change = np.where((level_after > level_before) == rises, level_after - level_before, 0.0)
        within = squares[now] - sum_before**2 / before - sum_after**2 / after
        yield after, change, np.maximum(within, 0.0)
