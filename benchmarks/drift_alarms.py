"""How often the drift charts alarm over stable histories, and how soon they find a shift, by simulation.

`python -m benchmarks.drift_alarms` prints two Markdown tables, with `--unlike` one of what the charts do not assume,
with `--recaptured` one of stable branches whose reference was captured anew.
Effects are in standard errors of one run, as a run's own interval gives it; how far runs really scatter about their
level is a share of that, as they ask the same items.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q36eval.drift.charts import IN_CONTROL_RUN_LENGTH, LEAST_SPREAD, Charts, control_charts, limits_for

Array = NDArray[np.float64]

RUNS = 60
METRICS = 20
ITEMS = 200
CHUNK = 250
NEVER = 10_000


@dataclass(frozen=True)
class Shape:
    """How stable histories scatter: `draw` gives effects and standard errors [runs, histories, metrics]."""

    name: str
    draw: Callable[[tuple[int, int, int], np.random.Generator], tuple[Array, Array]]
    metrics: int = METRICS


def normal(scatter: float, shared: float = 0.0) -> Callable[..., tuple[Array, Array]]:
    """Normal effects; `shared` is the correlation of any two metrics of a run."""

    def draw(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
        own, common = rng.standard_normal(shape), rng.standard_normal((*shape[:2], 1))
        return scatter * (np.sqrt(1 - shared) * own + np.sqrt(shared) * common), np.ones(shape)

    return draw


def heavy(scatter: float) -> Callable[..., tuple[Array, Array]]:
    """Student's t with 3 degrees of freedom, of the same standard deviation."""

    def draw(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
        return scatter * rng.standard_t(3, shape) / np.sqrt(3), np.ones(shape)

    return draw


def repeats(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """A deterministic engine: the same to the last bit, but for rounding that differs in one run of ten."""
    rounding = np.where(rng.random(shape) < 0.1, 1e-9, 0.0)
    return 0.3 + rounding * rng.standard_normal(shape), np.ones(shape)


def flips(share: float) -> Callable[..., tuple[Array, Array]]:
    """200 items that are right or wrong, 10 of them lost for good; 8 more lie on the edge and are lost in a `share` of
    the runs. The standard error is that of a paired difference of proportions, as the run itself would give it."""

    def draw(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
        lost = 10 + rng.binomial(8, share, shape)
        rate = lost / ITEMS
        return rate, np.sqrt(rate * (1 - rate) / ITEMS)

    return draw


def counts(mean: float) -> Callable[..., tuple[Array, Array]]:
    """Rare events, counted: Poisson, with the standard error that `monitoring.least_spreads` gives a bare count."""

    def draw(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
        events = rng.poisson(mean, shape).astype(float)
        return events, np.broadcast_to(np.sqrt(np.maximum(1.0, events.mean(axis=0))), shape)

    return draw


def skewed(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """Exponential: no run lies far below the level, some lie far above it."""
    return rng.exponential(size=shape) - 1.0, np.ones(shape)


def correlated(share: float, scatter: float = 1.0) -> Callable[..., tuple[Array, Array]]:
    """Each run resembles the one before it: AR(1)."""

    def draw(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
        figures = rng.standard_normal(shape)
        for run in range(1, len(figures)):
            figures[run] = share * figures[run - 1] + np.sqrt(1 - share**2) * figures[run]
        return scatter * figures, np.ones(shape)

    return draw


UNLIKE = (
    Shape("counts, 0.05 a run on average", counts(0.05)),
    Shape("counts, 0.5 a run", counts(0.5)),
    Shape("counts, 3 a run", counts(3.0)),
    Shape("skewed (exponential), as wide as the interval says", skewed),
    Shape("each run like the last (AR 0.3), as wide as the interval says", correlated(0.3)),
    Shape("each run like the last (AR 0.6), a third as wide", correlated(0.6, 1 / 3)),
)
"""What the charts do not assume: neither normal nor independent."""

STABLE = (
    Shape("normal, as wide as the interval says", normal(1.0)),
    Shape("the same, one metric", normal(1.0), 1),
    Shape("normal, a third as wide", normal(1 / 3)),
    Shape("normal, twice as wide as the interval says", normal(2.0)),
    Shape("normal, metrics correlated by 0.8", normal(1.0, 0.8)),
    Shape("heavy tails (t, 3 degrees of freedom)", heavy(1.0)),
    Shape("heavy tails, a third as wide", heavy(1 / 3)),
    Shape("repeats to the last bit, or to 1e-9", repeats),
    Shape("8 of 200 items flip, each in half of the runs", flips(0.5)),
    Shape("8 of 200 items flip, each in one run of fifty", flips(0.02)),
)


def alarms(effects: Array, errors: Array, watched: int) -> tuple[Array, Charts]:
    """The first run with an alarm [histories], `NEVER` where there is none; a history alarms when any metric does."""
    runs, histories, metrics = effects.shape
    flat = effects.reshape(runs, -1), LEAST_SPREAD * errors.reshape(runs, -1)
    charts = control_charts(*flat, limits_for(watched))
    signal = charts.signal.reshape(runs, histories, metrics).any(axis=2)
    return np.where(signal.any(axis=0), signal.argmax(axis=0), NEVER).astype(float), charts


def false_alarms(shape: Shape, histories: int, rng: np.random.Generator) -> float:
    """The share of stable histories with an alarm."""
    chunk, alarmed = CHUNK * METRICS // shape.metrics, 0
    for first in range(0, histories, chunk):
        size = (RUNS, min(chunk, histories - first), shape.metrics)
        alarmed += int((alarms(*shape.draw(size, rng), shape.metrics)[0] < NEVER).sum())
    return alarmed / histories


def recaptured(scatter: float, moved: float, histories: int, rng: np.random.Generator) -> tuple[float, float]:
    """Shares of stable branches that alarm when the reference is captured anew after half of the runs.

    Every effect then moves by the reference's own noise, normal with `moved` standard errors of a run. First with all
    runs on one line, then as `q36eval.drift.lines` lays them out: a line of its own for each capture.
    """
    one_line = two_lines = 0
    for first in range(0, histories, CHUNK):
        size = (RUNS, min(CHUNK, histories - first), METRICS)
        effects, errors = normal(scatter)(size, rng)
        effects[RUNS // 2 :] += moved * rng.standard_normal(size[1:])
        captures = slice(None, RUNS // 2), slice(RUNS // 2, None)
        one_line += int((alarms(effects, errors, METRICS)[0] < NEVER).sum())
        each = [alarms(effects[runs], errors[runs], METRICS)[0] < NEVER for runs in captures]
        two_lines += int(np.logical_or(*each).sum())
    return one_line / histories, two_lines / histories


def delay(shift: float, scatter: float, before: int, watched: int, histories: int, rng: np.random.Generator) -> str:
    """Runs until the alarm, the first shifted one counted: median, and the share that alarms within 30."""
    effects, errors = normal(scatter)((before + 30, histories, 1), rng)
    effects[before:] += shift
    first, _ = alarms(effects, errors, watched)
    first = first[first >= before] - before + 1
    median, share = float(np.median(first)), float(np.mean(first < NEVER / 2))
    return f"{median:.0f} ({100 * share:.0f} %)" if median < NEVER / 2 else f"> 30 ({100 * share:.0f} %)"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=5_000)
    parser.add_argument("--delays", type=int, default=1_000)
    parser.add_argument("--unlike", action="store_true", help="Only histories that scatter otherwise than assumed.")
    parser.add_argument("--recaptured", action="store_true", help="Only references that are captured anew.")
    chosen = parser.parse_args()
    rng = np.random.default_rng(20_260_417)
    if chosen.recaptured:
        print(
            "| scatter of runs, reference's move, in standard errors | alarmed, %: one line | a line for each capture |"
        )
        print("|---|---|---|")
        for scatter in (0.0, 0.3, 1.0):
            for moved in (1.0, 2.0):
                before, after = recaptured(scatter, moved, chosen.histories, rng)
                print(f"| {scatter:g}, {moved:g} | {100 * before:.1f} | {100 * after:.1f} |", flush=True)
        return
    stated = 100 * (1 - np.exp(-RUNS / IN_CONTROL_RUN_LENGTH))
    print(f"| {chosen.histories:,} stable histories of {RUNS} runs | metrics | alarmed, % (stated: {stated:.1f}) |")
    print("|---|---|---|")
    for shape in UNLIKE if chosen.unlike else STABLE:
        alarmed = 100 * false_alarms(shape, chosen.histories, rng)
        print(f"| {shape.name} | {shape.metrics} | {alarmed:.2f} |", flush=True)
    if chosen.unlike:
        return
    print("\n| metrics watched | runs before | scatter / standard error | 1 standard error | 2 | 4 |")
    print("|---|---|---|---|---|---|")
    for watched in (1, METRICS):
        for before in (5, 10, 20):
            for scatter in (0.0, 0.3, 1.0):
                cells = [delay(shift, scatter, before, watched, chosen.delays, rng) for shift in (1.0, 2.0, 4.0)]
                print(f"| {watched} | {before} | {scatter:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
