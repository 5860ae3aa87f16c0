"""What the charts say, in states and sentences: of each metric, and of the branch. Pure."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from q36eval.drift.charts import IN_CONTROL_RUN_LENGTH, RESIDUAL_CAP, Limits, limits_for
from q36eval.drift.monitor import ROUNDING, Followed, follow, standard_error
from q36eval.drift.records import BranchDrift, DeploymentChange, DriftPoint, DriftState, MetricDrift
from q36eval.drift.series import Placed, place, unmeasured_since
from q36eval.gate.noise import of_reference_alone
from q36eval.history.records import SeriesPoint, SeriesRun
from q36eval.records import Direction

FEWEST_RUNS = 3
"""The charts say nothing before the third run of a line: two have a distance, and no spread to hold it against."""

NO_SCATTER = ", beyond all earlier values, whose scatter is zero"

Judged = tuple[DriftState, str]


def branch_drift(
    family: str,
    branch: str,
    series: Sequence[SeriesPoint],
    blessed_run_id: str | None = None,
    watched: Collection[str] | None = None,
    runs: Sequence[SeriesRun] = (),
    read_keys: Collection[str] | None = None,
) -> BranchDrift:
    """A branch's drift from `series`, as `History.metric_series` gives it; `watched` keys decide its state (None: all).

    `runs` are all finished runs of the branch: one without a point in `series` may have been to measure something.
    `read_keys` are the keys that `series` was read for (None: all): of other watched ones it says nothing.

    The charts' limits are such that all watched metrics together raise one false alarm in `IN_CONTROL_RUN_LENGTH` runs.
    """
    metrics = drift(series, blessed_run_id, watched, runs)
    deciding = [metric for metric in metrics if metric.watched]
    looked_for = set(watched or ()) if read_keys is None else set(watched or ()) & set(read_keys)
    never = sorted(looked_for - {point.key for point in series})
    state, statement = _of_branch(deciding)
    if never:
        verb = "was" if len(never) == 1 else "were"
        statement += f" {len(never)} more that the policy judges {verb} never measured."
    baselines = Counter(metric.baseline_run_id for metric in deciding if metric.baseline_run_id is not None)
    return BranchDrift(
        family=family,
        branch=branch,
        state=state,
        statement=statement,
        worse=any(metric.state is DriftState.DRIFTING and metric.worse for metric in deciding),
        runs=len({run.id for run in (*runs, *(point.run for point in series))}),
        baseline_run_id=baselines.most_common(1)[0][0] if baselines else None,
        blessed_run_id=blessed_run_id,
        watched=len(deciding),
        in_control_run_length=IN_CONTROL_RUN_LENGTH,
        never_measured=tuple(never),
        changes=_all_changes(metrics),
        metrics=tuple(metrics),
    )


def _all_changes(metrics: Sequence[MetricDrift]) -> tuple[DeploymentChange, ...]:
    """Newest first. Of one run whose metrics are compared with different ones, what the last metric saw."""
    changed = {point.run_id: point for metric in metrics for point in metric.points if point.identity_changes}
    return tuple(
        DeploymentChange(run_id=point.run_id, started=point.started, changed=point.identity_changes)
        for point in sorted(changed.values(), key=lambda point: (point.started, point.run_id), reverse=True)
    )


def drift(
    series: Sequence[SeriesPoint],
    blessed_run_id: str | None = None,
    watched: Collection[str] | None = None,
    runs: Sequence[SeriesRun] = (),
) -> list[MetricDrift]:
    """Drift of every metric in `series` (as `History.metric_series` gives it), sorted by key.

    The noise floor is left out: it says nothing of the branch. `watched` keys share the false alarm rate; the others
    are held to the same limits and decide nothing. `runs` are as in `branch_drift`.
    """
    by_key: dict[str, list[SeriesPoint]] = {}
    for point in sorted(series, key=lambda point: (point.run.started, point.run.id)):
        if not of_reference_alone(point.probe, point.metric):
            by_key.setdefault(point.key, []).append(point)
    limits = limits_for(len(by_key) if watched is None else len(watched))
    known = {run.id: run for run in (*runs, *(point.run for point in series))}
    every = sorted(known.values(), key=lambda run: (run.started, run.id))
    placed = {key: place(by_key[key], every) for key in sorted(by_key)}
    lines = [_Line(placed[key], blessed_run_id) for key in placed]
    followed = iter(follow([stream for line in lines for stream in line.streams], limits))
    drifts = []
    for key, line in zip(placed, lines, strict=True):
        charted = [next(followed) for _ in line.streams]
        unmeasured = unmeasured_since(by_key[key], every)
        drifts.append(_metric(line, charted, limits, unmeasured, watched is None or key in watched))
    return drifts


@dataclass(frozen=True)
class _Line:
    placed: Sequence[Placed]
    blessed_run_id: str | None

    @property
    def streams(self) -> list[list[SeriesPoint]]:
        """Figures that compare with each other, stream by stream."""
        count = max((one.stream for one in self.placed if one.stream is not None), default=-1) + 1
        return [[one.point for one in self.placed if one.stream == number] for number in range(count)]

    @property
    def newest(self) -> Placed:
        """The newest run's figure."""
        return self.placed[-1]


def _metric(
    line: _Line, charted: Sequence[Followed], limits: Limits, unmeasured: str | None, watched: bool
) -> MetricDrift:
    newest = line.newest
    now = None if newest.stream is None else charted[newest.stream]
    blessed = _position(now, line.blessed_run_id)
    move = None if now is None else _move(now, blessed)
    state, statement = _judged(line, now, blessed, move, unmeasured)
    baseline = None if now is None else now.points[blessed or 0].run.id
    change_points: tuple[str, ...] = ()
    if now is not None:
        later = (*now.stretches[1:], *(() if now.hint is None else (now.hint,)))
        change_points = tuple(now.points[first].run.id for first in later)
    return MetricDrift(
        key=newest.point.key,
        unit=newest.point.unit,
        direction=newest.point.direction,
        state=state,
        statement=statement,
        baseline_run_id=baseline,
        accepted_level=None if now is None else now.level(now.stretch_of(blessed or 0)),
        level=None if now is None else now.level(len(now.stretches) - 1),
        points=_points(line.placed, charted, limits),
        since_run_id=None if move is None else move.since.run.id,
        change=None if move is None else move.change,
        worse=move is not None and move.worse,
        changed_there=() if move is None else _changed_at(line.placed, move.since).identity_changes,
        **({} if move is None else _changed_near(line.placed, move.since)),
        change_points=change_points,
        in_control_run_length=limits.run_length,
        watched=watched,
    )


def _position(now: Followed | None, run_id: str | None) -> int | None:
    """The place of the blessed run among those that compare with the newest; None where it is not among them."""
    if now is None or run_id is None:
        return None
    return next((place for place, point in enumerate(now.points) if point.run.id == run_id), None)


@dataclass(frozen=True)
class _Move:
    """A level that left the accepted one at `since` and has not come back."""

    since: SeriesPoint
    before: float
    after: float
    worse: bool

    @property
    def change(self) -> float:
        return self.after - self.before


def _move(now: Followed, blessed: int | None) -> _Move | None:
    """The move away from the accepted level: that of the stretch with the blessed run, else of the oldest one."""
    accepted, newest = now.stretch_of(blessed or 0), len(now.stretches) - 1
    first = newest
    while first > accepted and now.away(first, accepted):
        first -= 1
    if first == newest:
        return None
    before, after = now.level(accepted), now.level(newest)
    since = now.points[now.stretches[first + 1]]
    worse = (after > before) == (since.direction is Direction.LOWER_IS_BETTER)
    return _Move(since, before, after, worse)


def _changed_at(placed: Sequence[Placed], since: SeriesPoint) -> Placed:
    return next(one for one in placed if one.point is since)


NEAR = 3
"""Runs either way by which noise may put a move beside the run that it began with."""


def _changed_near(placed: Sequence[Placed], since: SeriesPoint) -> dict[str, Any]:
    """Where nothing changed with the first run of a move: what changed nearest to it, the earlier of two."""
    first = _changed_at(placed, since)
    line = [one for one in placed if one.stream == first.stream]
    at = line.index(first)
    near = sorted(line[max(0, at - NEAR) : at + NEAR + 1], key=lambda one: abs(line.index(one) - at))
    nearest = next((one for one in near if one.identity_changes), None)
    if nearest is None or nearest is first:
        return {}
    return {"near_run_id": nearest.point.run.id, "changed_near": nearest.identity_changes}


def _judged(
    line: _Line, now: Followed | None, blessed: int | None, move: _Move | None, unmeasured: str | None
) -> Judged:
    if unmeasured is not None:
        return DriftState.INCOMPARABLE, f"The newest run that was to measure it, {unmeasured}, did not."
    if now is None:
        return DriftState.INCOMPARABLE, "The newest run gave no finite figure."
    if move is not None:
        return DriftState.DRIFTING, _drifting(line, now, move)
    if line.blessed_run_id is not None and blessed is None:
        return DriftState.INCOMPARABLE, _not_with_blessed(line)
    count = len(now.points)
    if count < FEWEST_RUNS:
        runs = f"{count} of {FEWEST_RUNS} runs that compare"
        return DriftState.TOO_FEW_RUNS, f"Too few runs: {runs}{_set_aside(line)}."
    back = ", back at the accepted level" if len(now.stretches) > now.stretch_of(blessed or 0) + 1 else ""
    newest = now.rows[count - 1]
    outlier = abs(newest["residual"]) >= RESIDUAL_CAP
    aside = f"; {_far_off(now)}" if outlier else ""
    if now.hint is not None and not outlier:
        aside = f"; it may have changed with run {now.points[now.hint].run.id}, which is no alarm yet"
    return DriftState.STABLE, f"Stable over {count} runs at {_figure(now.level(len(now.stretches) - 1))}{back}{aside}."


def _far_off(now: Followed) -> str:
    """How far the newest run lies from those before it on its level."""
    *earlier, last = now.points[now.stretches[-1] :]
    if earlier:
        apart = abs(last.effect - earlier[-1].effect)
        if _usual_error(earlier, apart) is None and _repeats(earlier, apart):
            return f"the newest run alone lies off{NO_SCATTER}"
    return f"the newest run alone lies {abs(now.rows[len(now.points) - 1]['residual']):.1f} spreads off"


def _drifting(line: _Line, now: Followed, move: _Move) -> str:
    size = f"{move.change:+.3g}{_in_errors(now, move)}"
    changed, near = _changed_at(line.placed, move.since).identity_changes, _changed_near(line.placed, move.since)
    with_it = f"changed there: {', '.join(changed)}" if changed else "nothing in the deployment changed there"
    if near:
        with_it += f", but near it, with run {near['near_run_id']}: {', '.join(near['changed_near'])}"
    way = "worse" if move.worse else "better"
    levels = f"{_figure(move.before)} -> {_figure(move.after)} ({size})"
    return f"Drifting for the {way} since run {move.since.run.id}: {levels}; {with_it}."


def _in_errors(now: Followed, move: _Move) -> str:
    """The size of a move in standard errors of a run, or words where no earlier run has one that means anything."""
    before = now.points[: now.points.index(move.since)]
    error = _usual_error(before, abs(move.change))
    if error is not None:
        return f", {abs(move.change) / error:.1f} standard errors of a run"
    return NO_SCATTER if _repeats(before, abs(move.change)) else ""


def _usual_error(points: Sequence[SeriesPoint], size: float) -> float | None:
    """The median standard error of runs; None where it is nothing beside `size`.

    What repeats to the last bit has an interval as wide as its rounding, and a quotient by that says nothing.
    """
    errors = [error for error in map(standard_error, points) if math.isfinite(error)]
    error = median(errors) if errors else 0.0
    return error if error > ROUNDING * max(size, *(abs(point.effect) for point in points)) else None


def _repeats(points: Sequence[SeriesPoint], size: float) -> bool:
    """Whether runs differ by no more than rounding."""
    effects = [point.effect for point in points]
    return max(effects) - min(effects) <= ROUNDING * max(size, *map(abs, effects))


def _not_with_blessed(line: _Line) -> str:
    then = next((one for one in line.placed if one.point.run.id == line.blessed_run_id), None)
    if then is None:
        return f"The blessed run {line.blessed_run_id} did not measure it."
    if then.stream is None:
        return f"The blessed run {line.blessed_run_id} gave no finite figure."
    at = line.placed.index(then)
    why = dict.fromkeys(reason for one in line.placed[at + 1 :] for reason in one.breaks)
    return f"Cannot be compared with the blessed run {line.blessed_run_id}: {'; '.join(why)}."


def _set_aside(line: _Line) -> str:
    apart = sum(one.stream != line.newest.stream for one in line.placed)
    if not apart:
        return ""
    why = next((one.breaks for one in reversed(line.placed) if one.breaks), ())
    runs = "1 earlier run is" if apart == 1 else f"{apart} earlier runs are"
    return f"; {runs} set aside ({'; '.join(why)})" if why else f"; {runs} set aside"


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _points(placed: Sequence[Placed], charted: Sequence[Followed], limits: Limits) -> tuple[DriftPoint, ...]:
    seen = [0] * len(charted)
    points = []
    for one in placed:
        rows: dict[str, float] = {}
        signal = False
        if one.stream is not None:
            stream, run = charted[one.stream], seen[one.stream]
            rows, signal = stream.rows.get(run, {}), run in stream.alarms
            seen[one.stream] += 1
        points.append(_point(one, rows, limits, signal, one.stream == placed[-1].stream))
    return tuple(points)


def _point(one: Placed, rows: dict[str, float], limits: Limits, signal: bool, comparable: bool) -> DriftPoint:
    known = {name: value for name, value in rows.items() if math.isfinite(value)}
    charted = "residual" in known
    return DriftPoint(
        run_id=one.point.run.id,
        started=one.point.run.started,
        value=one.point.value,
        effect=one.point.effect,
        effect_interval=one.point.effect_interval,
        verdict=one.point.run.verdict,
        line=one.line,
        breaks=one.breaks,
        comparable=comparable and one.stream is not None,
        identity_changes=one.identity_changes,
        signal=signal,
        cusum_limit=limits.cusum if charted else None,
        shift_limit=limits.shift if charted else None,
        **(known if charted else {}),
    )


def _of_branch(metrics: Sequence[MetricDrift]) -> Judged:
    """A move outweighs everything; then what cannot be told, for unknown is not fine."""
    if not metrics:
        return DriftState.TOO_FEW_RUNS, "No watched metric was measured yet."
    of = {state: [metric for metric in metrics if metric.state is state] for state in DriftState}
    worse = [metric for metric in of[DriftState.DRIFTING] if metric.worse]
    better = [metric for metric in of[DriftState.DRIFTING] if not metric.worse]
    if worse or better:
        moved = [f"{len(some)} for the {way}" for some, way in ((worse, "worse"), (better, "better")) if some]
        lead = _since(worse or better)
        return DriftState.DRIFTING, f"{' and '.join(moved)} of {len(metrics)} watched metrics drift; {lead}"
    for state, words in (
        (DriftState.INCOMPARABLE, "cannot be compared"),
        (DriftState.TOO_FEW_RUNS, "have too few runs"),
    ):
        if of[state]:
            return state, f"{len(of[state])} of {len(metrics)} watched metrics {words}."
    return DriftState.STABLE, f"All {len(metrics)} watched metrics are stable."


def _since(metrics: Sequence[MetricDrift]) -> str:
    """Since when most of them moved, and what changed there."""
    run, count = Counter(metric.since_run_id for metric in metrics).most_common(1)[0]
    there = next(metric for metric in metrics if metric.since_run_id == run)
    return f"{count} since run {run}, where {there.what_changed} changed."
