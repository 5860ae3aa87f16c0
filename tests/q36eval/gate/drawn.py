"""Policies and evidence for the property tests of `decide`: every margin kind, both lanes, errored items, blessed runs.

Every figure has a severity, from 0 (as the reference) on, and a greater one is worse in every cluster and in a way that
no bound may answer with a better one: answers are lost one after the other, unbounded values all shift or all scale.
(Of unbounded values one alone may well grow without a verdict getting worse: an outlier widens the interval too.)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from q36eval.records import Direction, Estimator, Measurement, ProbeName, Schedule
from q36eval.stats import quantile_clusters
from tests.q36eval.gate.evidence import HIGHER, LOWER, census, flips, measurement, questions
from tests.q36eval.stats.evidence import items

WORST = 4
"""The greatest severity."""

Builder = Callable[[int, int], Measurement]
"""A measurement from its severity and how many items errored."""


@dataclass(frozen=True)
class Kind:
    """One criterion to draw: what it judges, by which margins, and how its evidence is made.

    `blessed` says that it holds against what the same builder made for the blessed run.
    """

    id: str
    probe: ProbeName
    metric: str
    slice: str
    margin: str
    values: tuple[float, ...]
    build: Builder
    blessed: bool = False
    may_error: bool = False


@cache
def lost_answers(severity: int, errored: int) -> Measurement:
    """Two hundred items, right under the reference but for ten; ever more of them are lost."""
    right = [0] * 10 + [1] * 190
    branch = [0 if 10 <= row < 10 + (0, 3, 12, 40, 120)[severity] else score for row, score in enumerate(right)]
    return paired(branch, right, "accuracy", "mmlu", errored, "paired_mean", HIGHER)


@cache
def lost_in_the_last_block(severity: int, errored: int) -> Measurement:
    """Asked in blocks. Bets are fixed by the blocks before, which stay as they are: else worse may bet less."""
    scores = [0] * 4 + [1] * 296
    branch = [0 if row >= 300 - (0, 10, 30, 50, 60)[severity] else score for row, score in enumerate(scores)]
    found = paired(branch, scores, "accuracy", "ruler", errored, "paired_mean", HIGHER)
    schedule = Schedule(largest=1, blocks=tuple(row // 60 for row in range(300)))
    return found.model_copy(update={"clusters": found.clusters.model_copy(update={"schedule": schedule})})


@cache
def broken_answers(severity: int, errored: int) -> Measurement:
    """Forty questions of each of three canaries: first one breaks, then a second."""
    breaks = ((0, 0), (6, 0), (20, 0), (40, 3), (40, 9))[severity]
    branch = [int(row < count) for count in (*breaks, 0) for row in range(40)]
    names = questions(("a", 40), ("b", 40), ("c", 40))
    found = paired(branch, [0] * 120, "failure_rate", "structured", errored, "paired_proportions", LOWER)
    clusters = found.clusters.model_copy(update={"names": names})
    return found.model_copy(update={"probe": ProbeName.CANARIES, "clusters": clusters})


def paired(
    branch: list[int],
    reference: list[int],
    metric: str,
    slice: str,
    errored: int,
    estimator: Estimator,
    direction: Direction,
) -> Measurement:
    """Items of which the middle ones errored: neither those that are lost first nor those that are lost last."""
    rows, middle = range(len(branch)), len(branch) // 2
    lost = [int(middle <= row < middle + errored) for row in rows]
    scores = ([score * (1 - lost[row]) for row, score in enumerate(column)] for column in (branch, reference))
    clusters = items(*scores, errored=lost, names=tuple(f"item-{row}" for row in rows))
    return measurement(ProbeName.EVALS, metric, clusters, estimator, direction, slice)


@cache
def flipped_prompts(severity: int, errored: int) -> Measurement:
    a, b = ((0, 0), (1, 0), (3, 0), (3, 1), (9, 9))[severity]
    return flips({"a": (20, a), "b": (20, b)})


@cache
def non_finite(severity: int, errored: int) -> Measurement:
    return census(ProbeName.KL, "non_finite_tokens", (0, 0, 1, 2, 9)[severity])


@cache
def faults(severity: int, errored: int) -> Measurement:
    return census(ProbeName.WEIGHTS, "integrity_faults", (0, 0, 1, 2, 9)[severity])


def documents(count: int = 40) -> np.ndarray:
    return np.random.default_rng(7).lognormal(-6, 1, count)


@cache
def divergences(severity: int, errored: int) -> Measurement:
    return unbounded("kl_divergence", documents() + (0.0, 0.004, 0.01, 0.02, 0.1)[severity], None, "mean")


@cache
def perplexities(severity: int, errored: int) -> Measurement:
    nll = 1.5 + 10 * documents()
    return unbounded("perplexity", nll + (0.0, 0.01, 0.02, 0.05, 1.0)[severity], nll[::-1], "perplexity")


@cache
def margins(severity: int, errored: int) -> Measurement:
    """Ratios of decisive margins, thirty questions of each of two canaries."""
    values = 5.0 + 100 * documents(60)
    branch = values * 0.5**severity * np.where(np.arange(60) % 2, 1.0, 0.75)
    clusters = items(branch, values, bounds=None, names=questions(("a", 30), ("b", 30)))
    return measurement(ProbeName.CANARIES, "decisive_margin_ratio", clusters, "ratio", HIGHER, "structured")


@cache
def quantiles(severity: int, errored: int) -> Measurement:
    values = np.random.default_rng(8).lognormal(-6, 1, 60 * 20) * 2.0**severity
    _, clusters = quantile_clusters(values, np.repeat(np.arange(60), 20), (0,) * 60, 0.9, (0.0, math.inf))
    return measurement(ProbeName.KL, "kl_p99", clusters, "quantile")


@cache
def agreements(severity: int, errored: int) -> Measurement:
    """Of each document's hundred tokens so many agree on the most likely one."""
    agree = [max(0, 100 - row % 5 - (0, 2, 10, 30, 60)[severity]) for row in range(60)]
    clusters = items(agree, units=[100] * 60, names=tuple(map(str, range(60))))
    return measurement(ProbeName.KL, "top1_agreement", clusters, "mean", HIGHER)


def unbounded(metric: str, branch: np.ndarray, reference: np.ndarray | None, estimator: Estimator) -> Measurement:
    """Forty documents of two hundred tokens each, from what each loses per token."""
    sums = (None if column is None else 200 * column for column in (branch, reference))
    names = tuple(f"document-{row}" for row in range(len(branch)))
    return measurement(ProbeName.KL, metric, items(*sums, [200] * len(branch), bounds=None, names=names), estimator)


KL, EVALS, CANARIES = ProbeName.KL, ProbeName.EVALS, ProbeName.CANARIES
KINDS = (
    Kind("mmlu", EVALS, "accuracy", "mmlu", "min_recovery", (0.8, 0.93), lost_answers, may_error=True),
    Kind("mmlu-drift", EVALS, "accuracy", "mmlu", "min_recovery", (0.8, 0.93), lost_answers, True, True),
    Kind("ruler", EVALS, "accuracy", "ruler", "max_increase", (0.05, 0.1), lost_in_the_last_block, may_error=True),
    Kind("failures", CANARIES, "failure_rate", "structured", "max_increase", (0.08, 0.2), broken_answers),
    Kind("failures-drift", CANARIES, "failure_rate", "structured", "max_increase", (0.08,), broken_answers, True),
    Kind("must-pass", CANARIES, "must_pass_flips", "structured", "max_count", (0, 2), flipped_prompts),
    Kind("intact", ProbeName.WEIGHTS, "integrity_faults", "all", "max_count", (0,), faults),
    Kind("finite", KL, "non_finite_tokens", "all", "max_count", (0, 2), non_finite),
    Kind("kl", KL, "kl_divergence", "all", "max_value", (0.008, 0.02), divergences),
    Kind("kl-drift", KL, "kl_divergence", "all", "max_increase", (0.002, 0.015), divergences, True),
    Kind("perplexity", KL, "perplexity", "all", "min_retention", (0.98, 0.95), perplexities),
    Kind("perplexity-drift", KL, "perplexity", "all", "min_retention", (0.985,), perplexities, True),
    Kind("margins", CANARIES, "decisive_margin_ratio", "structured", "min_recovery", (0.4, 0.8), margins),
    Kind("p99", KL, "kl_p99", "all", "max_value", (0.015, 0.05), quantiles),
    Kind("top1-drift", KL, "top1_agreement", "all", "min_recovery", (0.9,), agreements, True),
)
