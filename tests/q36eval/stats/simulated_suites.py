"""Suites of paired items, drawn block by block from branches whose loss is known, and the gate's looks at them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from q36eval.evals.blocks import Allocation
from q36eval.stats import planned_largest
from tests.q36eval.stats.evidence import Margin
from tests.q36eval.stats.simulated_looks import Kinds, Looker, margin_looks

Array = NDArray[np.float64]

SCORE = 0.85
MARGIN = 0.0085
ALPHA = 0.025
CHUNK = 100
MMLU_ITEMS = 14_042


POINTS, RECOVERY = Margin("max_increase", MARGIN), Margin("min_recovery", 1.0 - MARGIN / SCORE)


@dataclass(frozen=True)
class Scenario:
    """A branch that changes `flips` of its answers, half each way, and loses `loss` of all answers beyond that."""

    flips: float
    loss: float
    margin: Margin = POINTS
    concentration: float = 2.0

    @property
    def lost(self) -> float:
        """The share of items that turn wrong."""
        return self.flips / 2 + self.loss

    @property
    def gained(self) -> float:
        """The share of items that turn right."""
        return self.flips / 2


@dataclass(frozen=True)
class Suite:
    """How many clusters each stratum has [strata], and of how many items each is."""

    clusters: NDArray[np.int64]
    items: NDArray[np.int64]
    block_items: int

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """Clusters [blocks, strata], each block with each stratum's share as nearly as whole clusters allow."""
        strata = np.repeat(np.arange(len(self.clusters)), self.clusters)
        rng = np.random.default_rng(3)
        places = [(np.arange(count) + rng.random()) / count for count in self.clusters]
        order = np.argsort(np.concatenate(places), kind="stable")
        block = (np.cumsum(self.items[strata[order]]) - 1) // self.block_items
        counts = np.zeros((int(block.max()) + 1, len(self.clusters)), dtype=np.int64)
        np.add.at(counts, (block, strata[order]), 1)
        return counts

    @cached_property
    def asked(self) -> Array:
        """The share of all items asked by the end of each block."""
        items = np.cumsum(self.blocks @ self.items).astype(np.float64)
        return items / items[-1]


def kinds(suite: Suite, *, by_block: bool = True, last_look: bool = True) -> Kinds:
    """Per cluster size: lost, gained, right on both, wrong on both."""
    sizes = np.unique(suite.items).astype(np.float64)
    branch, reference = np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])
    largest = float(planned_largest(np.repeat(suite.items, suite.clusters).tolist()))
    columns = (np.outer(sizes, column).ravel() for column in (branch, reference, np.ones(4)))
    cut = (suite.clusters * np.maximum(suite.items - largest, 0)).sum() / (suite.clusters @ suite.items)
    return Kinds(*columns, largest, by_block, cut_share=float(cut), last_look=last_look, right_share=SCORE)


def draw(suite: Suite, scenario: Scenario, gates: int, rng: np.random.Generator) -> Array:
    """Counts [gates, blocks, kinds] of branches of one scenario."""
    weights = suite.clusters * suite.items / (suite.clusters @ suite.items)
    lost = _uneven(scenario.lost, SCORE, scenario.concentration, weights, gates, rng)
    gained = _uneven(scenario.gained, 1.0 - SCORE, scenario.concentration, weights, gates, rng)
    rates = np.stack([lost, gained, SCORE - lost, 1.0 - SCORE - gained], axis=-1)
    sizes, size = np.unique(suite.items, return_inverse=True)
    counts = np.zeros((gates, len(suite.blocks), 4 * len(sizes)))
    for stratum, clusters in enumerate(suite.blocks.T):
        held = np.flatnonzero(clusters)
        drawn = rng.multinomial(clusters[held], rates[:, None, stratum])
        counts[:, held, 4 * size[stratum] : 4 * size[stratum] + 4] += drawn
    return counts


def _uneven(
    mean: float, most: float, concentration: float, weights: Array, gates: int, rng: np.random.Generator
) -> Array:
    """Rates [gates, strata] of the given mean over the suite, drawn again where one lies above `most`."""
    rates = np.full((gates, len(weights)), np.inf)
    while (beyond := (rates > most).any(axis=1)).any():
        drawn = rng.gamma(concentration, size=(int(beyond.sum()), len(weights)))
        rates[beyond] = mean * drawn / (drawn @ weights)[:, None]
    return rates


def z_test(suite: Suite, margin: float) -> Looker:
    """p-values of the paired difference's normal approximation, as if each look were the only one."""
    answer_kinds = kinds(suite)
    losses = answer_kinds.reference - answer_kinds.branch

    def looks(counts: Array) -> tuple[Array, Array]:
        so_far = np.cumsum(counts, axis=1)
        items, total = so_far @ answer_kinds.units, so_far @ losses
        errors = np.sqrt(np.maximum(so_far @ losses**2 - total**2 / items, 1e-9)) / items
        z = (total / items - margin) / errors
        return norm.cdf(z), norm.sf(z)

    return looks


def judged(looker: Looker, evaluated: Array, counts: Array, criteria: int = 1) -> tuple[NDArray[np.int64], Array]:
    """Each gate's verdict [gates] (1 PASS, -1 FAIL, 0 neither), and the share of items evaluated when it was decided.

    `evaluated` [blocks]: the share of all items by the end of each block; `criteria` share the alpha of FAIL.
    """
    p_pass, p_fail = looker(counts)
    inside, outside = p_pass <= ALPHA, criteria * p_fail <= ALPHA
    stops = inside | outside
    at = np.where(stops.any(axis=1), stops.argmax(axis=1), stops.shape[1] - 1)
    gates = np.arange(len(at))
    return np.where(inside[gates, at], 1, np.where(outside[gates, at], -1, 0)), evaluated[at]


MARGIN_SPREAD = 3.0
"""Standard deviation of the reference's margins in nats; only their ranks matter."""


def margin_row(scenario: Scenario, gates: int, seed: int, *, by_margin: bool) -> tuple[float, float, float]:
    """Shares of gates that PASS and FAIL, and the mean share of items evaluated; 200 items a block, drawn by margin.

    Every `CHUNK` gates have margins of their own, for the items are a sample too. Flips follow the margin (normal noise
    that exceeds it), and so does the loss, or with `by_margin` False it is as likely at every right answer.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for start in range(0, gates, CHUNK):
        margins = rng.normal(ndtri(SCORE), 1.0, MMLU_ITEMS) * MARGIN_SPREAD
        plan = Allocation.of(np.abs(margins), 200.0)
        counts = margin_counts(plan, rates_of(margins, scenario, by_margin=by_margin), min(CHUNK, gates - start), rng)
        items = np.cumsum(counts[0].sum(axis=-1))
        rows.append(judged(margin_looks(margin_kinds(plan), scenario.margin), items / items[-1], counts))
    verdicts, evaluated = (np.concatenate(column) for column in zip(*rows, strict=True))
    return float((verdicts == 1).mean()), float((verdicts == -1).mean()), float(evaluated.mean())


def rates_of(margins: Array, scenario: Scenario, *, by_margin: bool) -> Array:
    """Probabilities [items, 4] that each item is lost, gained, right on both sides, wrong on both."""
    right = margins > 0
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if ndtr(-np.abs(margins) / middle).mean() < max(scenario.flips, 1e-4) else (low, middle)
        )
    noise = ndtr(-np.abs(margins) / high) if scenario.flips else np.zeros_like(margins)
    lost, gained = np.where(right, noise, 0.0), np.where(right, 0.0, noise)
    if scenario.flips:
        lost, gained = (each * scenario.flips / 2 / each.mean() for each in (lost, gained))
    harm = right * (ndtr(-np.abs(margins) / MARGIN_SPREAD * 8) if by_margin else 1.0)
    lost = np.minimum(lost + scenario.loss * harm / harm.mean(), right)
    gained = np.minimum(gained, ~right)
    return np.stack([lost, gained, right - lost, ~right - gained], axis=-1)


def margin_counts(plan: Allocation, rates: Array, gates: int, rng: np.random.Generator) -> Array:
    """Counts [gates, blocks, strata * 4]: the blocks drawn by margin, and everything else as one block more."""
    counts = np.bincount(plan.stratum)
    means = np.stack([rates[plan.stratum == stratum].mean(axis=0) for stratum in range(len(counts))])
    means /= means.sum(axis=-1, keepdims=True)
    first = [rng.multinomial(n, p, size=(gates, plan.blocks)) for n, p in zip(plan.drawn, means, strict=True)]
    rest = [
        rng.multinomial(n, p, size=(gates, 1)) for n, p in zip(counts - plan.drawn * plan.blocks, means, strict=True)
    ]
    return np.concatenate([np.concatenate(each, axis=-1) for each in (first, rest)], axis=1).astype(np.float64)


def margin_kinds(plan: Allocation) -> Kinds:
    strata = len(plan.drawn)
    columns = [np.tile(column, strata) for column in ([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0] * 4)]
    weights, rates = np.repeat(plan.weights, 4), np.repeat(plan.rates, 4)
    largest = float(plan.weights.max())
    return Kinds(
        *columns, largest, weights=weights, expected_changes=rates, last_bet=plan.blocks - 1, right_share=SCORE
    )
