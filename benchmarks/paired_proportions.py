"""How often tests on paired items err: of rates, computed exactly and beside betting's; of margins, by simulation.

`python -m benchmarks.paired_proportions` prints Markdown tables. The distribution of (only the branch fails, only the
reference fails) is computed from its generating function, for items that are alike and for items that are not, and
summed over the outcomes that the test calls PASS or FAIL: no simulation, no error of its own. Ratios and differences of
unbounded margins are simulated.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q36eval.records import Clusters, Direction
from q36eval.stats import MarginKind, as_expected, power, summarize
from q36eval.stats import _bootstrap as bootstrap
from q36eval.stats._contrast import linear_contrast
from q36eval.stats._inference import SEED, MeanInference
from q36eval.stats._pairs import ExactDifference
from q36eval.stats._ratio import RatioInference

Array = NDArray[np.float64]
Rates = Sequence[tuple[int, float, float]]
"""Of each stratum: items, the rate of failing on the branch alone, and that on the reference alone."""

ALPHA = 0.025
SIZES = (20, 50, 200, 500)
BETTER_RATES = (0.0, 0.002, 0.01, 0.05, 0.15)
UNLIKE = ((50, 0.0, 0.04), (50, 0.1, 0.02), (200, 0.0, 0.02), (200, 0.05, 0.005), (200, 0.05, 0.05), (500, 0.02, 0.01))
"""Items, the true loss and the rate at which only the reference fails."""

RESAMPLES = 999


def distribution(rates: Rates) -> Array:
    """P(worse = i, better = j) [n + 1, n + 1] of independent items, from their generating function by an FFT."""
    n = sum(items for items, _, _ in rates)
    roots = np.exp(-2j * np.pi * np.arange(n + 1) / (n + 1)) - 1.0
    product = np.ones((n + 1, n + 1), dtype=np.complex128)
    for items, worse, better in rates:
        product *= (1.0 + worse * roots[:, None] + better * roots[None, :]) ** items
    # what rounding leaves of impossible outcomes may be negative
    return np.maximum(np.fft.ifft2(product).real, 0.0)


def refuting(n: int, margin: float, most_better: int) -> NDArray[np.bool_]:
    """Outcomes [n + 1, n + 1] (worse, better) that refute a loss of `margin` or more, up to `most_better`.

    By the staircase that they are bounded by; more `better` ones than that are taken to refute nothing.
    """
    refutes = np.zeros((n + 1, n + 1), dtype=np.bool_)
    worse = 0
    for better in range(min(n, most_better) + 1):
        while worse + better <= n and ExactDifference(worse, better, n).p_at_least(margin) <= ALPHA:
            worse += 1
        refutes[: min(worse, n - better + 1), better] = True
        worse = max(0, min(worse, n - better - 1))
    return refutes


@dataclass(frozen=True)
class Verdicts:
    """Outcomes of n items that PASS, and that FAIL, a margin."""

    passing: NDArray[np.bool_]
    failing: NDArray[np.bool_]

    @classmethod
    def of(cls, n: int, margin: float, most_rate: float) -> "Verdicts":
        """All that matter while neither rate exceeds `most_rate`."""
        most = int(n * most_rate + 8 * (n * most_rate) ** 0.5 + 8)
        return cls(refuting(n, margin, most), refuting(n, -margin, most).T)

    def rates(self, rates: Rates) -> tuple[float, float]:
        """The probabilities of PASS and FAIL."""
        chances = distribution(rates)
        return float(chances[self.passing].sum()), float(chances[self.failing].sum())


def mixtures(n: int, margin: float, better: float, rng: np.random.Generator, drawn: int) -> Iterator[tuple[str, Rates]]:
    """Strata that differ, all with a mean loss of `margin` and a mean rate of `better` or, by rounding, nearly so."""
    worse, quarter = better + margin, n // 4
    rest = n - quarter
    share = n / quarter
    yield "all alike", [(n, worse, better)]
    yield "a quarter holds all of the loss", [(quarter, better + share * margin, better), (rest, better, better)]
    yield "a quarter holds all that differs", [(quarter, share * worse, share * better), (rest, 0.0, 0.0)]
    half = n // 2
    halves = worse * n / half, better * n / (n - half)
    yield "one half gets worse, the other better", [(half, halves[0], 0.0), (n - half, 0.0, halves[1])]
    for differing in (0.25, 0.5, 0.75, 1.0):
        some = round(n * (worse + better) / differing)
        lost = n * margin / some
        if some < n and lost <= differing:
            rates = (differing + lost) / 2, (differing - lost) / 2
            yield f"{differing:.0%} of some items differ, no others", [(some, *rates), (n - some, 0.0, 0.0)]
    sure = round(n * margin)
    yield (
        "some always fail, the others go either way",
        [
            (sure, 1.0, 0.0),
            (n - sure, (n * worse - sure) / (n - sure), n * better / (n - sure)),
        ],
    )
    for number in range(drawn):
        weights = rng.dirichlet(np.full(8, 0.4), size=2) * 8
        items = [n // 8 + (k < n % 8) for k in range(8)]
        columns = [w / np.dot(w, items) * n * rate for w, rate in zip(weights, (worse, better), strict=True)]
        if (columns[0] + columns[1]).max() <= 1.0:
            yield f"random {number}", list(zip(items, *columns, strict=True))


def paired(n: int, worse: int, better: int) -> Clusters:
    """n items of which so many fail on one side alone; the others pass on both."""
    branch = (1.0,) * worse + (0.0,) * (n - worse)
    reference = (0.0,) * worse + (1.0,) * better + (0.0,) * (n - worse - better)
    return Clusters(units=(1,) * n, branch=branch, reference=reference, errored=(0,) * n, bounds=(0.0, 1.0))


def widths() -> Iterator[str]:
    """95 % intervals of the difference, both ways."""
    yield "| items | worse | better | exact | betting | width / betting's | exact, ms |\n|---|---|---|---|---|---|---|"
    for n in (*SIZES, 1000):
        for worse, better in sorted({(0, 0), (1, 0), (2, 2), (n // 20, 0), (n // 10, n // 20)}):
            clusters = paired(n, worse, better)
            start = time.perf_counter()
            exact = summarize(clusters, "paired_proportions")[3]
            spent = time.perf_counter() - start
            betting = summarize(clusters, "paired_mean")[3]
            ratio = (exact.upper - exact.lower) / (betting.upper - betting.lower)
            both = " | ".join(f"[{i.lower:+.4f}, {i.upper:+.4f}]" for i in (exact, betting))
            yield f"| {n} | {worse} | {better} | {both} | {ratio:.2f} | {1e3 * spent:.0f} |"


def errors() -> Iterator[str]:
    """How often a branch exactly at the margin passes or fails, and how often an interval misses."""
    yield "| items | margin | better | false PASS, % | false FAIL, % | interval covers, % |\n|---|---|---|---|---|---|"
    for n in SIZES:
        margin = 0.2 if n < 50 else 0.1 if n < 200 else 0.05
        for at in (0.0, margin):
            verdicts = Verdicts.of(n, at, at + max(BETTER_RATES))
            dense = [verdicts.rates([(n, q + at, q)]) for q in np.linspace(0.0, max(BETTER_RATES), 40)]
            for better in BETTER_RATES:
                yield _error_row(n, at, f"{better:.1%}", *verdicts.rates([(n, better + at, better)]))
            yield _error_row(n, at, "worst of 40", *np.array(dense).max(axis=0))


def _error_row(n: int, margin: float, better: str, false_pass: float, false_fail: float) -> str:
    covers = "" if better.startswith("worst") else f"{100 * (1 - false_pass - false_fail):.2f}"
    return f"| {n} | {margin} | {better} | {100 * false_pass:.3f} | {100 * false_fail:.3f} | {covers} |"


def unlike(drawn: int) -> Iterator[str]:
    """The same for strata that differ in their rates."""
    yield "| items | margin | better | strata | false PASS, % | false FAIL, % |\n|---|---|---|---|---|---|"
    rng = np.random.default_rng(5)
    for n, margin, better in UNLIKE:
        verdicts = Verdicts.of(n, margin, margin + better)
        random = []
        for name, rates in mixtures(n, margin, better, rng, drawn):
            shares = verdicts.rates(rates)
            if name.startswith("random"):
                random.append(shares)
                continue
            yield f"| {n} | {margin} | {better} | {name} | {100 * shares[0]:.3f} | {100 * shares[1]:.3f} |"
        worst = 100 * np.array(random).max(axis=0)
        yield f"| {n} | {margin} | {better} | worst of {len(random)} random ones | {worst[0]:.3f} | {worst[1]:.3f} |"


@dataclass(frozen=True)
class _Increase:
    value: float
    kind: MarginKind = "max_increase"


def detection() -> Iterator[str]:
    """What either test can show of branches that change 2 % of their answers, one criterion of four."""
    yield "| items | margin | test | no loss passes | loss that fails 4 times in 5 |\n|---|---|---|---|---|"
    for n, margin in ((50, 0.1), (200, 0.05), (200, 0.03), (500, 0.03)):
        for name, estimator in (("exact", "paired_proportions"), ("betting", "paired_mean")):
            figures = power(
                as_expected([1] * n, 0.95),
                _Increase(margin),
                confidence=1.0 - ALPHA,
                alpha=ALPHA,
                criteria=4,
                direction=Direction.HIGHER_IS_BETTER,
                estimator=estimator,  # type: ignore[arg-type]
            )
            drop = figures.detected[0.8]
            yield f"| {n} | {margin} | {name} | {figures.passes:.0%} | {'none' if drop is None else f'{drop:.1%}'} |"


@dataclass(frozen=True)
class Margins:
    """A population of decisive margins: `draw` gives branch and reference, whose true means are known."""

    name: str
    branch: float
    reference: float
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]


def populations() -> Iterator[Margins]:
    """Skewed margins of the reference in nats; the branch's are a share of them and noise, or some are lost."""

    def shrunk(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        reference = rng.lognormal(1.0, 0.8, n)
        return 0.95 * reference + rng.normal(0.0, 0.4, n), reference

    def heavy(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        reference = rng.gamma(1.5, 2.0, n)
        return 0.9 * reference + 0.5 * rng.standard_t(4, n), reference

    def proportional(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        reference = rng.lognormal(1.0, 0.8, n)
        return reference * (1.0 + rng.normal(0.0, 0.3, n)), reference

    def collapsing(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        reference = rng.gamma(2.0, 3.0, n)
        lost = rng.random(n) < 0.05
        return np.where(lost, -0.5, 1.0) * reference + rng.normal(0.0, 0.3, n), reference

    lognormal = float(np.exp(1.0 + 0.32))
    yield Margins("lognormal, 5 % lost, noise", 0.95 * lognormal, lognormal, shrunk)
    yield Margins("gamma 1.5, 10 % lost, noise t4", 2.7, 3.0, heavy)
    yield Margins("lognormal, noise in proportion", lognormal, lognormal, proportional)
    yield Margins("gamma 2, one in 20 collapses", 6.0 * 0.925, 6.0, collapsing)


def miss_rates(population: Margins, n: int, simulations: int, seed: int = 3) -> dict[str, tuple[float, float]]:
    """Shares of samples whose lower bound lies above the truth, and whose upper one below, of ratio and difference."""
    rng = np.random.default_rng(seed)
    misses = np.zeros((2, 2))
    for _ in range(simulations):
        branch, reference = population.draw(rng, n)
        clusters = Clusters(units=(1,) * n, branch=tuple(branch), reference=tuple(reference), errored=(0,) * n)
        ratio, ratio_truth = RatioInference.of(clusters, SEED), population.branch / population.reference
        mean, truth = MeanInference(linear_contrast(clusters, 1.0, -1.0)), population.branch - population.reference
        misses[0] += ratio.p_at_most(ratio_truth) <= ALPHA, ratio.p_at_least(ratio_truth) <= ALPHA
        misses[1] += mean.p_at_most(truth) <= ALPHA, mean.p_at_least(truth) <= ALPHA
    below, above = misses.T / simulations
    return {name: (float(below[k]), float(above[k])) for k, name in enumerate(("ratio", "paired mean"))}


def margins(simulations: int) -> Iterator[str]:
    """How often bounds on unbounded margins miss; 2.5 % promised."""
    yield "| margins | clusters | figure | lower bound misses, % | upper bound misses, % |\n|---|---|---|---|---|"
    for population in populations():
        for n in (50, 200, 500):
            for name, (below, above) in miss_rates(population, n, simulations).items():
                yield f"| {population.name} | {n} | {name} | {100 * below:.1f} | {100 * above:.1f} |"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=400, help="of samples of margins")
    parser.add_argument("--mixtures", type=int, default=100, help="of strata that differ, drawn at random")
    arguments = parser.parse_args()
    bootstrap.RESAMPLES = RESAMPLES
    for title, rows in (
        ("Widths", widths()),
        ("Errors at a true loss, computed exactly", errors()),
        ("Strata that differ, computed exactly", unlike(arguments.mixtures)),
        ("Power", detection()),
        (f"Unbounded margins, {arguments.simulations} samples each", margins(arguments.simulations)),
    ):
        print(f"\n## {title}\n", flush=True)
        for row in rows:
            print(row, flush=True)


if __name__ == "__main__":
    main()
