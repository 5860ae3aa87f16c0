"""Evidence for whole gates, drawn like the sandbox's from populations of which the loss is known.

Every criterion's evidence is drawn from a population whose true loss is known: items and documents are independent, as
the tests take them to be. Across criteria a latent shift makes the samples of one gate err together: the criteria's
draws are matched by rank (Iman & Conover, Commun. Statist. B 11 (1982), 311-334), which leaves each one's distribution
exactly what it was.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from q36eval.gate import Criterion, Policy
from q36eval.records import (
    Clusters,
    Counts,
    Direction,
    Estimator,
    FamilyCompetence,
    Interval,
    Measurement,
    Schedule,
)
from q36eval.stats import loss_limit

Array = NDArray[np.float64]
LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER

SHAPE = Path(__file__).with_name("gate_shape.json")
BLOCK_ITEMS = 175
"""As in evals/suites/sandbox.yaml."""

QUIET_KL = 0.0042
"""Nats per token of a branch without loss, 0.3 margins: what the sandbox's fp8-head diverged by with the weights of
step 6 (data/sandbox/README.md), as the next two are of it; with those of now it diverges by less than half of that."""

KL_SIGMA = 0.9
"""Log-spread of the documents' divergences: that of fp8-head's documents of 64 tokens and more above their median."""

NLL_NOISE = 0.0225
"""Standard deviation of a document's change in nats per token where nothing is lost: fp8-head's on the sandbox."""

PERSISTENCE = 0.94
"""A wrong answer to a fixed prompt is wrong in another batch too so often (benchmarks/README.md)."""

FIXED_FLIPS = 0.1
"""A fixed prompt flips so much more rarely than a draw: 1 in 570 over ten branches, 1 in 43 of main."""

NLL_SPREAD = 0.5
"""What a document loses differs from the mean by so much of it."""


@dataclass(frozen=True)
class Shape:
    """How much the sandbox asks, and what its reference answers.

    `accuracy`: of each group, the reference's scores as (score, items). `failure_rate`: of each lane, questions and how
    many of them the reference fails; `fixed_prompts`: the same of the fixed prompts that are judged as a rate.
    `must_pass`: prompts that are counted for the absolute list. `perplexity_tokens` of every text, and of every text
    that the divergence is taken on (tokens, nats per token of `fp8-head`).
    """

    accuracy: Mapping[str, Sequence[tuple[float, int]]]
    failure_rate: Mapping[str, tuple[int, int]]
    must_pass: Mapping[str, int]
    fixed_prompts: Mapping[str, tuple[int, int]]
    perplexity_tokens: Sequence[int]
    documents: Sequence[tuple[int, float]]

    @classmethod
    def load(cls, path: Path = SHAPE) -> "Shape":
        """The sandbox's, as measured."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Scenario:
    """A kind of branch.

    It changes a share `flips` of its answers, half of them each way, and loses `losses` beyond that: criterion id ->
    how many of its margins. `flipped` prompts of each must-pass set come out wrong in every batch. `shift` is how much
    the criteria's samples err together (the correlation of the normals whose ranks they take), from 0 to 1. A prompt
    that flips in one batch does so in another with probability `persistence`. Divergences of documents are lognormal
    of `kl_sigma`, or (None) distributed as those that were measured.
    """

    name: str
    kind: Literal["identical", "at the margin", "three margins worse", "one fault"]
    flips: float
    losses: Mapping[str, float] = field(default_factory=dict)
    flipped: int = 0
    shift: float = 0.5
    persistence: float = PERSISTENCE
    kl_sigma: float | None = KL_SIGMA

    def margins(self, criterion: Criterion) -> float:
        """How many margins of it are lost."""
        return self.losses.get(criterion.id, 0.0)


@dataclass(frozen=True)
class Draws:
    """The evidence of one criterion for G gates, and `losses` [G], what each sample shows, to match by rank."""

    losses: Array
    branch: Array
    reference: Array | None
    units: NDArray[np.int64] | None = None

    def reordered(self, order: NDArray[np.int64]) -> "Draws":
        """The same gates in another order."""
        columns = (None if column is None else column[order] for column in (self.reference, self.units))
        return Draws(self.losses[order], self.branch[order], *columns)  # type: ignore[arg-type]


def draw_gates(policy: Policy, shape: Shape, scenario: Scenario, gates: int, seed: Sequence[int]) -> dict[str, Draws]:
    """Evidence of `gates` branches for every criterion over sampled items or documents, by criterion id."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(gates)
    by_criterion = {}
    for criterion in policy.criteria:
        if criterion.tier == "blocking" and criterion.metric in DRAWN:
            draws = DRAWN[criterion.metric](criterion, shape, scenario, gates, rng)
            own = rng.standard_normal(gates)
            latent = scenario.shift**0.5 * common + (1.0 - scenario.shift) ** 0.5 * own
            by_criterion[criterion.id] = draws.reordered(_matching(draws.losses, latent, rng))
    return by_criterion


def _matching(losses: Array, latent: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """The order that gives the greatest loss to the greatest latent value, and so on; ties are broken by chance."""
    by_loss = np.lexsort((rng.random(losses.size), losses))
    order = np.empty(losses.size, dtype=np.int64)
    order[np.argsort(latent)] = by_loss
    return order


def _accuracy(criterion: Criterion, shape: Shape, scenario: Scenario, gates: int, rng: np.random.Generator) -> Draws:
    """Scores from 0 to 1: an answer worth something turns to nothing, or one worth nothing turns right."""
    scores, items = np.array(shape.accuracy[criterion.slice]).T
    right = float(scores @ items / items.sum())
    lost = scenario.flips / 2 + scenario.margins(criterion) * loss_limit(criterion.margin) * right
    wrong = float(items[scores == 0].sum() / items.sum())
    gained = min(scenario.flips / 2, wrong)
    lost = min(lost - (scenario.flips / 2 - gained), right)
    size = (gates, int(items.sum()))
    reference = rng.choice(scores, size=size, p=items / items.sum())
    chance = rng.random(size)
    branch = np.where(chance < np.where(reference > 0, lost / right, 0.0), 0.0, reference)
    branch = np.where((reference == 0) & (chance < gained / wrong), 1.0, branch)
    return Draws((reference - branch).mean(axis=1), branch, reference)


def _failure_rate(
    criterion: Criterion, shape: Shape, scenario: Scenario, gates: int, rng: np.random.Generator
) -> Draws:
    """1 where an answer fails."""
    questions, failing = shape.failure_rate[criterion.slice]
    wrong = failing / questions
    gained = min(scenario.flips / 2, wrong)
    lost = gained + scenario.margins(criterion) * loss_limit(criterion.margin)
    reference = rng.random((gates, questions)) < wrong
    flips = rng.random((gates, questions)) < np.where(reference, gained / wrong, lost / (1.0 - wrong))
    branch = (reference ^ flips).astype(np.float64)
    return Draws((branch - reference).mean(axis=1), branch, reference.astype(np.float64))


def _fixed_prompts(
    criterion: Criterion, shape: Shape, scenario: Scenario, gates: int, rng: np.random.Generator
) -> Draws:
    """1 where an answer fails. They are chosen as what the reference answers right, so that flips only lose."""
    questions, failing = shape.fixed_prompts[criterion.slice]
    wrong = failing / questions
    lost = FIXED_FLIPS * scenario.flips / 2 + scenario.margins(criterion) * loss_limit(criterion.margin)
    reference = rng.random((gates, questions)) < wrong
    flips = rng.random((gates, questions)) < np.where(reference, 0.0, lost / (1.0 - wrong))
    branch = (reference ^ flips).astype(np.float64)
    return Draws((branch - reference).mean(axis=1), branch, reference.astype(np.float64))


def _kl_divergence(
    criterion: Criterion, shape: Shape, scenario: Scenario, gates: int, rng: np.random.Generator
) -> Draws:
    """Means of documents of the corpus' lengths, in nats per token."""
    mean = scenario.margins(criterion) * loss_limit(criterion.margin) or QUIET_KL
    lengths, measured = np.array(shape.documents).T
    chosen = rng.integers(0, lengths.size, size=(gates, lengths.size))
    tokens = lengths[chosen].astype(np.int64)
    if scenario.kl_sigma is None:
        per_token = mean * measured[chosen] * lengths.sum() / (measured @ lengths)
    else:
        per_token = mean * rng.lognormal(-(scenario.kl_sigma**2) / 2, scenario.kl_sigma, tokens.shape)
    sums = tokens * per_token
    return Draws(sums.sum(axis=1) / tokens.sum(axis=1), sums, None, tokens)


def _perplexity(criterion: Criterion, shape: Shape, scenario: Scenario, gates: int, rng: np.random.Generator) -> Draws:
    """Sums of negative log-likelihoods; a document's change is normal about what is lost."""
    tokens = rng.choice(np.array(shape.perplexity_tokens), size=(gates, len(shape.perplexity_tokens)))
    lost = scenario.margins(criterion) * loss_limit(criterion.margin)
    reference = tokens * (0.7 + 0.14 * rng.standard_normal(tokens.shape)).clip(0.1)
    change = lost + np.hypot(NLL_NOISE, NLL_SPREAD * lost) * rng.standard_normal(tokens.shape)
    branch = reference + tokens * change
    return Draws((tokens * change).sum(axis=1) / tokens.sum(axis=1), branch, reference, tokens)


Drawer = Callable[[Criterion, Shape, Scenario, int, np.random.Generator], Draws]
DRAWN: dict[str, Drawer] = {
    "accuracy": _accuracy,
    "failure_rate": _failure_rate,
    "fixed_prompt_failure_rate": _fixed_prompts,
    "kl_divergence": _kl_divergence,
    "perplexity": _perplexity,
}


# -- from draws to measurements


NOT_SHOWN = Interval(lower=-np.inf, upper=np.inf, level=0.95, method="not computed: no verdict hangs on it")


def _measured(
    criterion: Criterion,
    estimator: Estimator,
    clusters: Clusters,
    figures: tuple[float, float | None, float],
    competence: FamilyCompetence | None = None,
) -> Measurement:
    """A measurement from its evidence; `figures` are value, reference value and effect."""
    value, reference_value, effect = figures
    scored = sum(clusters.units)
    return Measurement(
        probe=criterion.probe,
        metric=criterion.metric,
        slice=criterion.slice,
        unit="",
        direction=HIGHER if criterion.metric == "accuracy" else LOWER,
        estimator=estimator,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=NOT_SHOWN,
        counts=Counts(total=scored, scored=scored, errored=0),
        clusters=clusters,
        competence=None if competence is None else (competence,),
    )


def _competence(criterion: Criterion, right: int, items: int) -> FamilyCompetence:
    """What the reference gets right of all that is planned, as one family."""
    return FamilyCompetence(name=criterion.slice, items=items, informative=right, causes={"wrong": items - right})


def accuracy_measured(criterion: Criterion, draws: Draws, gate: int, rounds: int) -> Measurement:
    """After so many blocks."""
    assert draws.reference is not None
    blocks = blocks_of(draws.branch.shape[1])
    items = sum(block < rounds for block in blocks)
    branch, reference = draws.branch[gate, :items], draws.reference[gate, :items]
    clusters = Clusters(
        units=(1,) * items,
        branch=tuple(branch.tolist()),
        reference=tuple(reference.tolist()),
        errored=(0,) * items,
        bounds=(0.0, 1.0),
        schedule=Schedule(largest=1, blocks=blocks[:items]),
    )
    figures = (float(branch.mean()), float(reference.mean()), float((branch - reference).mean()))
    planned = draws.reference[gate]
    competence = _competence(criterion, int((planned == 1.0).sum()), planned.size)
    return _measured(criterion, "paired_mean", clusters, figures, competence)


@cache
def blocks_of(items: int) -> tuple[int, ...]:
    """The block of every item; a last block of less than half a block belongs to the one before it."""
    last = max(0, items // BLOCK_ITEMS - (items % BLOCK_ITEMS < BLOCK_ITEMS / 2))
    return tuple(min(item // BLOCK_ITEMS, last) for item in range(items))


def failures_measured(criterion: Criterion, draws: Draws, gate: int) -> Measurement:
    """All questions of a lane, at one look."""
    assert draws.reference is not None
    branch, reference = draws.branch[gate] > 0, draws.reference[gate] > 0
    counts = [int(np.count_nonzero(each)) for each in (branch & reference, branch & ~reference, reference & ~branch)]
    return _failures(criterion, *counts, branch.size)


@lru_cache(maxsize=4096)
def _failures(criterion: Criterion, both: int, worse: int, better: int, items: int) -> Measurement:
    """Kept, for the same counts come again in many gates; the order of the questions is of no matter."""
    neither = items - both - worse - better
    clusters = Clusters(
        units=(1,) * items,
        branch=(1.0,) * (both + worse) + (0.0,) * (better + neither),
        reference=(1.0,) * both + (0.0,) * worse + (1.0,) * better + (0.0,) * neither,
        errored=(0,) * items,
        bounds=(0.0, 1.0),
    )
    figures = ((both + worse) / items, (both + better) / items, (worse - better) / items)
    competence = _competence(criterion, worse + neither, items)
    return _measured(criterion, "paired_proportions", clusters, figures, competence)


def documents_measured(criterion: Criterion, draws: Draws, gate: int) -> Measurement:
    """A divergence, or where there is a reference a perplexity."""
    assert draws.units is not None
    units = draws.units[gate]
    reference = None if draws.reference is None else draws.reference[gate]
    clusters = Clusters(
        units=tuple(units.tolist()),
        branch=tuple(draws.branch[gate].tolist()),
        reference=None if reference is None else tuple(reference.tolist()),
        errored=(0,) * units.size,
    )
    mean = float(draws.branch[gate].sum() / units.sum())
    if reference is None:
        return _measured(criterion, "mean", clusters, (mean, None, mean))
    theirs = float(reference.sum() / units.sum())
    return _measured(criterion, "perplexity", clusters, (np.exp(mean), np.exp(theirs), np.exp(mean - theirs)))


@cache
def census(criterion: Criterion, count: int, total: int) -> Measurement:
    """What was counted of all that was asked."""
    exact = Interval(lower=count, upper=count, level=0.95, method="census")
    return Measurement(
        probe=criterion.probe,
        metric=criterion.metric,
        slice=criterion.slice,
        unit="",
        direction=LOWER,
        estimator="census",
        value=count,
        effect=count,
        effect_interval=exact,
        counts=Counts(total=total, scored=total, errored=0),
    )
