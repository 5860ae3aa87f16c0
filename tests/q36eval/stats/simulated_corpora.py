"""Corpora drawn from populations whose mean divergence is known, and how often bounds on it miss.

Documents are independent, so whole documents are drawn. `tests/kl/documents.json` describes the sandbox's documents;
`python -m benchmarks.coverage --measure BRANCH` measures it again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from q36eval.records import Clusters
from q36eval.stats import summarize

Array = NDArray[np.float64]
Bounds = tuple[float, float]

DOCUMENTS = Path(__file__).parents[2] / "kl" / "documents.json"
SIGMAS = (0.5, 0.8, 1.2)
ALPHA = 0.025


@dataclass(frozen=True)
class Corpus:
    """Per document, each [C]: scored tokens, the sum of their divergences and the sum of the squares of those."""

    tokens: Array
    sums: Array
    squares: Array

    def __getitem__(self, chosen: NDArray[np.int64]) -> "Corpus":
        return Corpus(self.tokens[chosen], self.sums[chosen], self.squares[chosen])

    @property
    def mean(self) -> float:
        """Nats per token."""
        return float(self.sums.sum() / self.tokens.sum())


@dataclass(frozen=True)
class Population:
    """Where corpora come from: `draw` makes one of C documents, `mean` is the truth in nats per token."""

    name: str
    mean: float
    draw: Callable[[np.random.Generator], Corpus]


def sandbox_documents(path: Path = DOCUMENTS) -> Corpus:
    """The documents of the shipped corpus, as one branch of the sandbox diverged on them."""
    rows = np.asarray(json.loads(path.read_text())["documents"], dtype=np.float64)
    return Corpus(*rows.T)


def populations(own: Corpus) -> Iterator[Population]:
    """The corpus itself as a population, then lognormal means per document, with the corpus' lengths and as many.

    Within a lognormal document the tokens' variance, in units of its mean squared, is the median of the corpus' own.
    """
    count = len(own.tokens)
    yield Population("the sandbox's documents", own.mean, lambda rng: own[rng.integers(0, count, count)])
    means = own.sums / own.tokens
    spread = float(np.median(own.squares / own.tokens / means**2))
    for sigma in SIGMAS:

        def draw(rng: np.random.Generator, sigma: float = sigma) -> Corpus:
            tokens = own.tokens[rng.integers(0, count, count)]
            drawn = rng.lognormal(0.0, sigma, count)
            return Corpus(tokens, drawn * tokens, spread * drawn**2 * tokens)

        yield Population(f"lognormal, σ {sigma}", float(np.exp(sigma**2 / 2)), draw)


def shipped(corpus: Corpus) -> Bounds:
    """What every figure of the KL probe is shown with and judged by."""
    clusters = Clusters(
        units=tuple(int(each) for each in corpus.tokens),
        branch=tuple(float(each) for each in corpus.sums),
        reference=None,
        errored=(0,) * len(corpus.tokens),
    )
    interval = summarize(clusters, "mean", 1 - 2 * ALPHA)[3]
    return interval.lower, interval.upper


def independent_tokens(corpus: Corpus) -> Bounds:
    """llama.cpp's `mean ± standard error`, which takes tokens as independent, at 1.96 of them (perplexity.cpp)."""
    count = float(corpus.tokens.sum())
    variance = float(corpus.squares.sum()) / count - corpus.mean**2
    error = 1.959964 * np.sqrt(variance / (count - 1))
    return corpus.mean - error, corpus.mean + error


class PercentileBootstrap:
    """Quantiles of the means of resampled corpora of C documents (Efron and Tibshirani 1993, section 13.3)."""

    def __init__(self, documents: int, resamples: int = 1999) -> None:
        rng = np.random.default_rng(5)
        self._weights = rng.multinomial(documents, np.full(documents, 1 / documents), size=resamples).astype(float)

    def __call__(self, corpus: Corpus) -> Bounds:
        totals = self._weights @ np.stack([corpus.sums, corpus.tokens], axis=1)
        means = np.sort(totals[:, 0] / totals[:, 1])
        rank = round(ALPHA * (len(means) + 1))
        return float(means[rank - 1]), float(means[-rank])


def estimators(documents: int) -> dict[str, Callable[[Corpus], Bounds]]:
    """Each gives a lower and an upper bound, each one-sided at 1 - ALPHA."""
    return {
        "q36eval": shipped,
        "percentile bootstrap": PercentileBootstrap(documents),
        "llama.cpp": independent_tokens,
    }


def miss_rates(population: Population, simulations: int, seed: int) -> dict[str, tuple[float, float]]:
    """For each estimator the share of corpora whose lower bound lies above the truth, and whose upper one below."""
    rng = np.random.default_rng(seed)
    chosen = estimators(len(population.draw(rng).tokens))
    missed = {name: np.zeros(2) for name in chosen}
    for _ in range(simulations):
        corpus = population.draw(rng)
        for name, bounds in chosen.items():
            lower, upper = bounds(corpus)
            missed[name] += (lower > population.mean, upper < population.mean)
    return {name: (float(counts[0]) / simulations, float(counts[1]) / simulations) for name, counts in missed.items()}
