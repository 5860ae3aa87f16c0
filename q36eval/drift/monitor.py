"""Follows streams of comparable runs through the charts, and cuts them into stretches of one level. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import NormalDist, median

import numpy as np

from q36eval.drift.charts import LEAST_SPREAD, Array, Charts, Limits, Spread, control_charts
from q36eval.history.records import SeriesPoint

RELATIVE_SPREAD = 0.005
"""The least spread of a figure without a standard error that is no count (a maximum), as a share of its size."""

HINT_LIMIT = 2.8
"""The greatest change of level that is worth a word though it is no alarm: in hindsight, over all runs at once, it is
passed by about 1 % of stable lines of up to 60 runs (benchmarks/README.md). Advisory: it sets no state."""

ROUNDING = 1e-9
"""Share of a figure's size below which a scatter or a standard error is that of its last bits: it measures nothing."""

_SMALLEST = 1e-6
_STILL_AWAY = 3.0
"""Errors between two stretches' levels below which they are the same level again; only asked after an alarm."""


def standard_error(point: SeriesPoint) -> float:
    """Of one run's effect, from the arms of its interval that are finite and not 0; NaN where there is none."""
    effect, interval = point.effect, point.effect_interval
    arms = [arm for arm in (interval.upper - effect, effect - interval.lower) if math.isfinite(arm) and arm > 0]
    return sum(arms) / len(arms) / _errors_of(interval.level) if arms else float("nan")


@cache
def _errors_of(level: float) -> float:
    """How many standard errors long an arm of such an interval is."""
    return NormalDist().inv_cdf((1 + level) / 2)


def least_spreads(points: Sequence[SeriesPoint]) -> Array:
    """The least spread of each run's residual [runs], in units of the effect, above 0.

    Half a standard error of the run (`LEAST_SPREAD`); of a bare count that is its root, as rare events scatter, at
    least 1: measured in their own spread, two single faults after many runs without one would be endless. A run that
    asked another number of items than is usual differs from the others by items that it does not share: of nested
    samples the difference has the variance of the one less that of the other.
    """
    errors = np.array([standard_error(point) for point in points])
    sizes = np.array([abs(point.effect) for point in points])
    errors = np.where(errors > ROUNDING * float(np.max(sizes)), errors, np.nan)
    if np.isnan(errors).all() and all(point.estimator == "census" and point.effect.is_integer() for point in points):
        errors = np.full(len(points), max(1.0, float(np.mean(sizes)) ** 0.5))
    if np.isnan(errors).all():
        return np.full(len(points), max(RELATIVE_SPREAD * float(np.max(sizes)), _SMALLEST))
    usual_error = float(np.nanmedian(errors))
    errors = np.where(np.isnan(errors), usual_error, errors)
    usual = median(point.scored for point in points)
    other = np.array([point.scored != usual for point in points])
    apart = np.where(other, np.abs(errors**2 - usual_error**2), 0.0)
    least: Array = np.maximum(np.sqrt((LEAST_SPREAD * errors) ** 2 + apart), np.finfo(float).tiny)
    return least


@dataclass
class Followed:
    """A stream after the charts: `stretches` are its levels' first runs, `alarms` the runs that found a change.

    `rows` are the charts' figures of each run; `hint` is the run at which the newest stretch may have changed level.
    """

    points: Sequence[SeriesPoint]
    stretches: list[int] = field(default_factory=lambda: [0])
    alarms: list[int] = field(default_factory=list)
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    hint: int | None = None

    @cached_property
    def effects(self) -> Array:
        """[runs]"""
        return np.array([point.effect for point in self.points])

    @cached_property
    def least(self) -> Array:
        """[runs]"""
        return least_spreads(self.points)

    def stretch_of(self, run: int) -> int:
        """Number of the stretch that a run belongs to."""
        return sum(first <= run for first in self.stretches) - 1

    def bounds(self, stretch: int) -> tuple[int, int]:
        """First run of a stretch, and the run after its last."""
        ends = [*self.stretches[1:], len(self.points)]
        return self.stretches[stretch], ends[stretch]

    def level(self, stretch: int) -> float:
        """Mean effect over a stretch."""
        return float(np.mean(self.effects[slice(*self.bounds(stretch))]))

    def away(self, stretch: int, from_stretch: int) -> bool:
        """Whether one stretch's level is beyond the other's, by the spread within all stretches."""
        change = abs(self.level(stretch) - self.level(from_stretch))
        least = float(np.sqrt(np.mean(self.least**2)))
        spread = self.spread(len(self.stretches))
        freedom = float(spread.freedom[0])
        deviation = max(least, float(np.sqrt(spread.squares[0] / freedom)) if freedom > 0 else 0.0)
        sizes = [end - first for first, end in map(self.bounds, (stretch, from_stretch))]
        return change >= least and change >= _STILL_AWAY * deviation * float(np.sqrt(sum(1 / size for size in sizes)))

    def spread(self, stretches: int) -> Spread:
        """What the first so many stretches say of the spread, as arrays of one series."""
        squares, freedom = 0.0, 0.0
        for first, end in (self.bounds(stretch) for stretch in range(stretches)):
            effects = self.effects[first:end]
            squares += float(np.sum((effects - effects.mean()) ** 2))
            freedom += end - first - 1
        return Spread(np.array([squares]), np.array([freedom]))


def follow(streams: Sequence[Sequence[SeriesPoint]], limits: Limits) -> list[Followed]:
    """Every stream through the charts. Where they signal, a new stretch begins at the run the change is traced to.

    The charts then start anew from there, with the spread of the stretches before: what they say of the runs up to the
    alarm stays what they said at the time.
    """
    followed = [Followed(points) for points in streams]
    waiting = [stream for stream in followed if len(stream.points)]
    while waiting:
        waiting = _next_alarms(waiting, limits)
    return followed


def _next_alarms(streams: list[Followed], limits: Limits) -> list[Followed]:
    """The streams that have another change of level, after adding it."""
    starts = [stream.stretches[-1] for stream in streams]
    shape = max(len(stream.points) - start for stream, start in zip(streams, starts, strict=True)), len(streams)
    effects, least = np.full(shape, np.nan), np.ones(shape)
    for column, (stream, start) in enumerate(zip(streams, starts, strict=True)):
        count = len(stream.points) - start
        effects[:count, column], least[:count, column] = stream.effects[start:], stream.least[start:]
    before = [stream.spread(len(stream.stretches) - 1) for stream in streams]
    spread = Spread(np.concatenate([one.squares for one in before]), np.concatenate([one.freedom for one in before]))
    charts = control_charts(effects, least, limits, spread)
    return [stream for column, stream in enumerate(streams) if _read(stream, charts, column)]


def _read(stream: Followed, charts: Charts, column: int) -> bool:
    """Take a stream's column of the charts up to its next alarm; whether there is one, and runs after it."""
    start, end = stream.stretches[-1], len(stream.points)
    for run in range(len(stream.rows), end):
        row = run - start
        stream.rows[run] = {name: float(getattr(charts, name)[row, column]) for name in _DRAWN}
        stream.rows[run]["expected"] += float(stream.effects[start])
        if charts.signal[row, column]:
            stream.alarms.append(run)
            stream.stretches.append(start + int(charts.split[row, column]))
            return run + 1 < end
    row = end - 1 - start
    if abs(charts.shift[row, column]) > HINT_LIMIT:
        stream.hint = start + int(charts.split[row, column])
    return False


_DRAWN = ("expected", "scale", "residual", "ewma", "ewma_limit", "cusum_high", "cusum_low", "shift")
