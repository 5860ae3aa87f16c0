"""How often one-sided bounds on a mean divergence miss, by simulation: ours, a percentile bootstrap's, llama.cpp's.

`python -m benchmarks.coverage` prints a Markdown table. Corpora are drawn from populations whose mean is known; a bound
misses when the mean lies beyond it. Documents are what is independent, so whole documents are drawn. What the sandbox's
own documents look like is kept in `tests/kl/documents.json`; `--measure BRANCH` makes that file anew.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from q36eval.records import Clusters
    from q36eval.stats import MarginKind

Array = NDArray[np.float64]
Bounds = tuple[float, float]

DOCUMENTS = Path(__file__).parents[1] / "tests" / "kl" / "documents.json"
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


def uneven(own: Corpus) -> Iterator[Population]:
    """Lognormal means per document of very unequal lengths, independent of the length or rising with it, as many."""
    count = len(own.tokens)
    for sigma, rise in ((0.8, 0.0), (0.8, 0.8)):

        def draw(rng: np.random.Generator, sigma: float = sigma, rise: float = rise) -> Corpus:
            tokens = np.maximum(1.0, np.round(300 * rng.lognormal(0.0, 1.0, count)))
            drawn = rng.lognormal(0.0, sigma, count) * (tokens / 300) ** rise
            return Corpus(tokens, drawn * tokens, drawn**2 * tokens)

        # E[length^(1 + rise)] / E[length] of log-lengths of standard deviation 1
        mean = float(np.exp(sigma**2 / 2 + ((1 + rise) ** 2 - 1) / 2))
        yield Population(f"σ {sigma}, log lengths of sd 1, rising with length^{rise}", mean, draw)


def few(sigma: float = 1.2) -> Iterator[Population]:
    """Lognormal means of few documents of equal length."""
    for count in (8, 40):

        def draw(rng: np.random.Generator, count: int = count) -> Corpus:
            tokens, drawn = np.full(count, 300.0), rng.lognormal(0.0, sigma, count)
            return Corpus(tokens, drawn * tokens, drawn**2 * tokens)

        yield Population(f"σ {sigma}, {count} documents", float(np.exp(sigma**2 / 2)), draw)


def shipped(corpus: Corpus) -> Bounds:
    """What every figure of the KL probe is shown with and judged by."""
    from q36eval.records import Clusters
    from q36eval.stats import summarize

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


def measure(branch: str) -> None:
    """Score a branch of the sandbox and keep what `Corpus` holds of every document."""
    import torch

    from q36eval.app.sandbox import build
    from q36eval.config.paths import Paths
    from q36eval.engines import open_engine
    from q36eval.kl.probe import KLProbe
    from q36eval.kl.scoring import Scorer
    from q36eval.run.materials import corpus_of

    paths = Paths.default()
    reference, engine = (open_engine(build(name)) for name in ("bf16", branch))
    items = KLProbe(corpus_of("sandbox", None, paths)[1]).plan(reference.tokenizer)
    requests = [request for item in items for request in item.scores]
    states = [{each.request.key: each.hidden_states for each in e.score(requests)} for e in (reference, engine)]
    scorer = Scorer(engine, reference.output_head())
    rows = []
    for item in items:
        parts = []
        for request in item.scores:
            p, q = (each[request.key] for each in states)
            assert p is not None
            assert q is not None
            parts.append(scorer.figures(p, q, torch.tensor(request.token_ids[request.first :])).forward_kl)
        divergences = torch.cat(parts)
        rows.append([len(divergences), float(divergences.sum()), float((divergences**2).sum())])
    DOCUMENTS.write_text(json.dumps({"branch": branch, "documents": rows}))


HEAVY_COUNTS = (140, 400)
GOOD_MARGINS = 3.0
"""A good branch's mean lies at a third of the margin."""


def _lognormal(sigma: float) -> Callable[[np.random.Generator, int], tuple[Array, float]]:
    return lambda rng, count: (rng.lognormal(0.0, sigma, count), float(np.exp(sigma**2 / 2)))


def _pareto(index: float) -> Callable[[np.random.Generator, int], tuple[Array, float]]:
    return lambda rng, count: (1.0 + rng.pareto(index, count), index / (index - 1))


def _catastrophes(rng: np.random.Generator, count: int) -> tuple[Array, float]:
    drawn = rng.lognormal(0.0, 0.5, count) * np.where(rng.random(count) < 0.01, 30.0, 1.0)
    return drawn, float(np.exp(0.125)) * 1.29


HEAVY: dict[str, Callable[[np.random.Generator, int], tuple[Array, float]]] = {
    **{f"lognormal, σ {sigma}": _lognormal(sigma) for sigma in (0.5, 1.0, 1.2)},
    **{f"Pareto, index {index}": _pareto(index) for index in (3.0, 2.0, 1.5)},
    "1 % of documents 30 times worse": _catastrophes,
}
"""Mean divergences of documents of equal length, and the population's mean."""

SHARE, BEYOND_MARGINS, CONFIDENCE = 0.01, 10.0, 0.975
"""What `release` asks of the share of sources (kl-worst-documents)."""


def _evidence(values: Array, per_cluster: int = 1) -> "Clusters":
    from q36eval.records import Clusters

    sums = 300 * values.reshape(-1, per_cluster).sum(axis=1)
    units = (300 * per_cluster,) * sums.size
    return Clusters(units=units, branch=tuple(sums.tolist()), reference=None, errored=(0,) * sums.size)


def heavy_tails(simulations: int) -> None:
    """False PASS at the margin, PASS of good branches: as bounds say, where tails are doubted, and with a share."""
    from q36eval.stats import ShareBeyond, margin_test, why_untrusted

    @dataclass(frozen=True)
    class Limit:
        kind: "MarginKind"
        value: float

    def passes(values: Array, limit: float, per_cluster: int = 1) -> tuple[bool, bool, bool]:
        clusters = _evidence(values, per_cluster)
        test = margin_test(clusters, "mean", Limit("max_value", limit), level=1 - 2 * ALPHA)
        inside = test.p_pass <= ALPHA
        trusted = inside and why_untrusted(clusters, "mean", test.loss_interval.upper, limit) is None
        worst = clusters.model_copy(
            update={
                "branch": tuple(values.reshape(-1, per_cluster).max(axis=1).tolist()),
                "units": (1,) * len(clusters.units),
            }
        )
        shown = ShareBeyond(worst, BEYOND_MARGINS * limit).p_at_least(SHARE) <= 1.0 - CONFIDENCE
        return inside, trusted, trusted and shown

    print("| documents | n | false PASS: bound, doubted, and share | good branch PASS: bound, doubted, and share |")
    print("|---|---|---|---|")
    for count in HEAVY_COUNTS:
        for name, draw in HEAVY.items():
            rng = np.random.default_rng(7)
            passed = np.zeros((2, 3))
            for _ in range(simulations):
                values, mean = draw(rng, count)
                passed += [passes(values, mean), passes(values, GOOD_MARGINS * mean)]
            _print_row(name, count, passed / simulations)
        for name, per_cluster in (("by document", 1), ("by source", 4)):
            rng = np.random.default_rng(7)
            passed = np.zeros((2, 3))
            for _ in range(simulations):
                of_source = np.repeat(rng.lognormal(0.0, 1.0, count // 4), 4)
                values, mean = of_source * rng.lognormal(0.0, 0.5, of_source.size), float(np.exp(0.625))
                passed += [passes(values, mean, per_cluster), passes(values, GOOD_MARGINS * mean, per_cluster)]
            _print_row(f"four of a source alike (σ 1 and 0.5), {name}", count, passed / simulations)


def _print_row(name: str, count: int, rates: Array) -> None:
    cells = [", ".join(f"{100 * rate:.1f}" for rate in row) for row in rates]
    print(f"| {name} | {count} | {cells[0]} | {cells[1]} |", flush=True)


def almost_all_zero(simulations: int) -> None:
    """How often the upper bound of values that are zero but for a few misses, where the bootstrap has none."""
    from q36eval.stats._bootstrap import BEYOND, _sparse

    averages, rng = (0.3, 1.0, 2.0, 3.0, 5.0), np.random.default_rng(1)
    print(
        f"| clusters | σ | {' | '.join(f'{each:g} not zero' for each in averages)} |\n|---|---|{'---|' * len(averages)}"
    )
    for clusters in (20, 40, 140):
        for sigma in (0.5, 1.0, 1.5, 2.0):
            cells = []
            for average in averages:
                truth = average / clusters * np.exp(sigma**2 / 2)
                missed, without, used = 0, 0, 0
                for _ in range(simulations):
                    sums = (rng.random(clusters) < average / clusters) * rng.lognormal(0.0, sigma, clusters)
                    sparse = _sparse(sums, np.ones(clusters)) if sums.any() else None
                    if sparse is not None:
                        upper, used = sparse.upper(ALPHA), used + 1
                        missed, without = missed + (upper < truth), without + (upper / BEYOND < truth)
                rates = f"{100 * missed / used:.1f}, {100 * without / used:.1f}" if used else ""
                cells.append(f"{rates} ({100 * used / simulations:.0f})")
            print(f"| {clusters} | {sigma} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=20_000)
    parser.add_argument("--measure", metavar="BRANCH", help="first make the documents' file anew from this branch")
    parser.add_argument("--almost-all-zero", action="store_true", help="the table of values that are seldom not zero")
    parser.add_argument("--heavy-tails", action="store_true", help="the table of heavy tails, and nothing else")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
    if arguments.almost_all_zero:
        almost_all_zero(arguments.simulations)
        return
    if arguments.heavy_tails:
        heavy_tails(arguments.simulations)
        return
    own = sandbox_documents()
    error = 100 * np.sqrt(ALPHA * (1 - ALPHA) / arguments.simulations)
    print(
        f"{len(own.tokens)} documents, {arguments.simulations:,} corpora each; lower and upper bound missed, % ", end=""
    )
    print(f"(2.5 promised; ± {error:.2f} is one standard error)\n")
    for number, population in enumerate([*populations(own), *uneven(own), *few()]):
        rates = miss_rates(population, arguments.simulations, seed=number)
        if number == 0:
            print("| population | " + " | ".join(rates) + " |\n|---|" + "---|" * len(rates))
        cells = [f"{100 * below:.1f}, {100 * above:.1f}" for below, above in rates.values()]
        print(f"| {population.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
