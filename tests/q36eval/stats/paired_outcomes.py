"""Outcomes of paired items, computed exactly: how probable each is, and which of them PASS or FAIL a margin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q36eval.stats._pairs import ExactDifference

Array = NDArray[np.float64]
Rates = Sequence[tuple[int, float, float]]
"""Of each stratum: items, the rate of failing on the branch alone, and that on the reference alone."""

ALPHA = 0.025


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
