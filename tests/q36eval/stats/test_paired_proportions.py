"""The exact paired test: against naive enumeration, its size, its order, and evidence that allows no exact test."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binomtest, multinomial

from q36eval.records import Clusters, Direction
from q36eval.stats import as_expected, can_show, margin_test, proportion_interval, summarize
from q36eval.stats._pairs import NUISANCE, ExactDifference
from tests.profiles import sized
from tests.q36eval.stats.evidence import Margin, items

Array = NDArray[np.float64]
Rates = Sequence[tuple[int, float, float]]
"""Of each stratum: items, the rate of failing on the branch alone, and that on the reference alone."""

ALPHA = 0.025


# -- outcomes of paired items, computed exactly: how probable each is, and which of them PASS or FAIL a margin


def distribution(rates: Rates) -> Array:
    """P(worse = i, better = j) [n + 1, n + 1] of independent items, from their generating function by an FFT."""
    n = sum(count for count, _, _ in rates)
    roots = np.exp(-2j * np.pi * np.arange(n + 1) / (n + 1)) - 1.0
    product = np.ones((n + 1, n + 1), dtype=np.complex128)
    for count, worse, better in rates:
        product *= (1.0 + worse * roots[:, None] + better * roots[None, :]) ** count
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
        counts = [n // 8 + (k < n % 8) for k in range(8)]
        columns = [w / np.dot(w, counts) * n * rate for w, rate in zip(weights, (worse, better), strict=True)]
        if (columns[0] + columns[1]).max() <= 1.0:
            yield f"random {number}", list(zip(counts, *columns, strict=True))


LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER
Limit = partial(Margin, "max_increase")


def paired(worse: int, better: int, n: int, errored: int = 0) -> Clusters:
    """n items that failed on one side alone so often, the others alternately on both and on none; then errored ones."""
    rest = [float(k % 2) for k in range(n - worse - better)]
    lost = [0.0] * errored
    branch = (*[1.0] * worse, *[0.0] * better, *rest, *lost)
    reference = (*[0.0] * worse, *[1.0] * better, *rest, *lost)
    return items(branch, reference, errored=[0] * n + [1] * errored)


def naive_statistic(worse: int, better: int, n: int, difference: float) -> float:
    """The score statistic with the constrained likelihood maximised by search, not by its closed form."""

    def minus_log_likelihood(p_better: float) -> float:
        rates = (p_better + difference, p_better, 1.0 - difference - 2.0 * p_better)
        counts = (worse, better, n - worse - better)
        return -sum(count * math.log(max(rate, 1e-300)) for count, rate in zip(counts, rates, strict=True) if count)

    ends = max(0.0, -difference), (1.0 - difference) / 2.0
    best = minimize_scalar(minus_log_likelihood, bounds=ends, method="bounded", options={"xatol": 1e-12}).x
    best = min((*ends, best), key=minus_log_likelihood)
    return (worse - better - n * difference) / math.sqrt(n * (2 * best + difference * (1.0 - difference)))


def naive_p(worse: int, better: int, n: int, margin: float) -> float:
    """The greatest probability, over a dense grid, of the outcomes that rank no higher: summed one by one."""
    outcomes = [(b, c) for b, c in product(range(n + 1), repeat=2) if b + c <= n]

    def limit(b: int, c: int) -> float:
        low, high = (b - c) / n + 1e-9, 1.0 - 1e-9
        if low >= high or naive_statistic(b, c, n, high) > -1.959963984540054:
            return 1.0
        return brentq(lambda d: naive_statistic(b, c, n, d) + 1.959963984540054, low, high, xtol=1e-13)

    seen = limit(worse, better)
    region = np.array([(b, c, n - b - c) for b, c in outcomes if limit(b, c) <= seen + 1e-7])
    most = binomtest(worse, n).proportion_ci(1 - 2 * NUISANCE, "exact").high
    rates = [
        (q + margin, q, 1 - margin - 2 * q) if margin >= 0 else (q, q - margin, 1 + margin - 2 * q)
        for q in np.linspace(0, (1 - abs(margin)) / 2, 800)
    ]
    kept = np.array([r for r in rates if r[0] <= most]).clip(0.0)
    kept /= kept.sum(axis=1, keepdims=True)
    return max(multinomial.pmf(region, n, rate).sum() for rate in kept) + NUISANCE


@pytest.mark.long
@pytest.mark.parametrize(
    ("worse", "better", "n", "margin"),
    [(0, 0, 7, 0.3), (1, 0, 8, 0.5), (1, 2, 8, 0.2), (0, 3, 9, -0.1), (2, 2, 9, 0.4), (0, 8, 8, -0.7), (0, 0, 1, 0.9)],
)
def test_p_values_are_those_of_naive_enumeration(worse: int, better: int, n: int, margin: float) -> None:
    # the grid steps over the maximum by at most 1 in 1,000
    assert ExactDifference(worse, better, n).p_at_least(margin) == pytest.approx(
        naive_p(worse, better, n, margin), rel=1e-3
    )


@pytest.mark.long
def test_a_branch_at_the_margin_passes_at_most_as_often_as_promised() -> None:
    for n, margin, most in ((20, 0.2, 0.2), (50, 0.0, 0.1), (50, 0.1, 0.1), (200, 0.02, 0.02), (500, 0.01, 0.005)):
        verdicts = Verdicts.of(n, margin, margin + most)
        rates = [verdicts.rates([(n, q + margin, q)]) for q in np.concatenate([[0, 1e-4], np.linspace(0, most, 9)])]
        assert np.max(rates) <= 0.025
        assert np.max(rates, axis=0).min() > 0.012  # and not by never deciding


def test_a_finer_grid_finds_no_likelier_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [(0, 0, 20, 0.16), (2, 1, 20, 0.25), (0, 3, 200, 0.0036), (20, 10, 200, 0.1), (300, 300, 1000, 0.048)]
    coarse = [ExactDifference(*counts).p_at_least(margin) for *counts, margin in outcomes]
    monkeypatch.setattr("q36eval.stats._pairs.GRID_STEP", 0.005)
    monkeypatch.setattr("q36eval.stats._pairs.GRID_GROWTH", 0.002)
    assert coarse == pytest.approx(
        [ExactDifference(*counts).p_at_least(margin) for *counts, margin in outcomes], rel=1e-3
    )


@settings(max_examples=sized(40, 150), deadline=None)
@given(st.data())
def test_a_further_failure_of_the_branch_never_looks_better(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 300))
    worse = data.draw(st.integers(0, min(n - 1, 40)))
    better = data.draw(st.integers(0, min(n - 1 - worse, 40)))
    margin = data.draw(st.floats(-0.99, 0.99))
    p = ExactDifference(worse, better, n).p_at_least(margin)
    rounding = 1 + 1e-9
    assert ExactDifference(worse + 1, better, n).p_at_least(margin) * rounding >= p
    assert ExactDifference(worse, better + 1, n).p_at_least(margin) <= p * rounding
    assert ExactDifference(worse, better, n).p_at_least(margin + 0.01) <= p * rounding
    # what decides early relies on it: never both small
    assert max(p, ExactDifference(better, worse, n).p_at_least(-margin)) == 1.0


@pytest.mark.long
@settings(max_examples=sized(4, 10), deadline=None)
@given(st.data())
def test_a_bound_lies_inside_the_margin_where_and_only_where_the_test_passes(data: st.DataObject) -> None:
    n = data.draw(st.integers(100, 150))
    worse, better = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    clusters = paired(worse, better, n, errored=data.draw(st.integers(0, 1)))
    direction = data.draw(st.sampled_from([LOWER, HIGHER]))
    level = data.draw(st.sampled_from([0.8, 0.95, 0.99]))

    def judged(margin: float):
        return margin_test(clusters, "paired_proportions", Limit(margin), direction=direction, level=level)

    alpha, loss = (1 - level) / 2, judged(0.0).loss_interval
    assert loss.method == "exact (unconditional)"
    for nearer in (-1e-9, 1e-9):
        assert (judged(loss.upper + nearer).p_pass <= alpha * (1 + 1e-12)) == (nearer > 0)
        assert (judged(loss.lower + nearer).p_fail <= alpha * (1 + 1e-12)) == (nearer < 0)
    _, _, effect, interval = summarize(clusters, "paired_proportions", level)
    assert interval.lower <= effect <= interval.upper
    sign = 1 if direction is LOWER else -1
    assert sorted(sign * bound for bound in (interval.lower, interval.upper)) == [loss.lower, loss.upper]


def test_nothing_that_flips_leaves_little_more_than_the_binomial_bound() -> None:
    _, _, _, exact = summarize(paired(0, 0, 200), "paired_proportions")
    one_sided = binomtest(0, 200).proportion_ci(0.95, "exact").high
    assert one_sided < exact.upper < 1.01 * one_sided
    assert exact.lower == -exact.upper
    assert exact.upper < 0.83 * summarize(paired(0, 0, 200), "paired_mean")[3].upper


@pytest.mark.long
def test_pooled_strata_err_hardly_more_often_than_items_that_are_alike() -> None:
    n, margin, better = 120, 0.05, 0.02
    verdicts = Verdicts.of(n, margin, margin + better)
    found = {name: verdicts.rates(r) for name, r in mixtures(n, margin, better, np.random.default_rng(1), 30)}
    concentrated = {share: found.pop(f"{share} of some items differ, no others") for share in ("75%", "100%")}
    assert len(found) > 20
    assert max(map(max, found.values())) <= 0.025
    # what is known not to hold, and by how much: the docstring of `_exact`
    assert max(concentrated["75%"]) <= 0.033
    assert max(concentrated["100%"]) <= 0.063
    # the distribution that says so, against drawn items
    rng = np.random.default_rng(2)
    rates = [(60, 0.1, 0.03), (60, 0.0, 0.01)]
    drawn = sum(rng.multinomial(count, (w, b, 1 - w - b), size=40_000) for count, w, b in rates)
    worse, equal = distribution(rates)[:, 0].sum(), (drawn[:, 1] == 0).mean()
    assert worse == pytest.approx(equal, abs=4 * (equal * (1 - equal) / 40_000) ** 0.5)


def test_degenerate_evidence() -> None:
    for nothing in (paired(0, 0, 0), paired(0, 0, 0, errored=3)):
        value, reference, effect, interval = summarize(nothing, "paired_proportions")
        assert np.isnan([value, reference, effect, interval.lower, interval.upper]).all()
        judged = margin_test(nothing, "paired_proportions", Limit(0.5))
        assert (judged.p_pass, judged.p_fail, judged.not_measured.code) == (1.0, 1.0, "nothing-scored")
    one = summarize(paired(1, 0, 1), "paired_proportions")[3]
    assert (one.lower, one.upper) == (pytest.approx(-0.95, abs=0.001), 1.0)
    lost = margin_test(paired(50, 0, 50), "paired_proportions", Limit(0.5))
    assert (lost.p_pass, lost.loss, lost.loss_interval.upper) == (1.0, 1.0, 1.0)
    assert lost.p_fail < 0.001
    won = margin_test(paired(0, 50, 50), "paired_proportions", Limit(0.0))
    assert (won.p_fail, won.loss_interval.lower) == (1.0, -1.0)
    assert won.p_pass < 0.001
    assert margin_test(paired(3, 0, 50), "paired_proportions", Limit(1.5)).p_pass < 0.001
    for impossible in ((3, 4, 5), (-1, 1, 5), (1, -1, 5)):
        with pytest.raises(ValueError, match=r"are no pairs of 5"):
            ExactDifference(*impossible)


def test_errored_items_are_the_worst_they_could_be_for_either_verdict() -> None:
    clean, errored = paired(2, 1, 400), paired(2, 1, 399, errored=1)
    limit = Limit(0.02)
    as_worse = margin_test(paired(3, 1, 400), "paired_proportions", limit)
    as_better = margin_test(paired(2, 2, 400), "paired_proportions", limit)
    judged = margin_test(errored, "paired_proportions", limit)
    assert judged.p_pass == as_worse.p_pass > margin_test(clean, "paired_proportions", limit).p_pass
    assert judged.p_fail == as_better.p_fail
    assert judged.loss_interval.upper == as_worse.loss_interval.upper
    assert judged.loss_interval.lower == as_better.loss_interval.lower


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"units": (2,) * 40}, "items share clusters"),
        ({"branch": (0.5,) * 40}, "scores lie between 0 and 1"),
        ({"schedule": {"largest": 1, "blocks": (0,) * 40}}, "asking may stop early"),
    ],
)
def test_what_allows_no_exact_test_is_judged_by_betting_and_says_so(change, why: str) -> None:
    clusters = Clusters.model_validate(paired(0, 0, 40).model_dump() | change)
    exact, betting = (summarize(clusters, estimator) for estimator in ("paired_proportions", "paired_mean"))
    assert exact[3].method == f"betting, not exact: {why}"
    assert exact[3].model_copy(update={"method": "betting"}) == betting[3]
    judged, as_mean = (margin_test(clusters, e, Limit(0.3)) for e in ("paired_proportions", "paired_mean"))
    assert (judged.p_pass, judged.p_fail) == (as_mean.p_pass, as_mean.p_fail)
    assert why in judged.loss_interval.method


def test_what_can_be_shown_is_what_the_exact_test_shows() -> None:
    n, right = 100, 90
    expected = as_expected([1] * n, right / n)
    shows = partial(can_show, expected, confidence=0.975, direction=Direction.HIGHER_IS_BETTER)
    assert shows(Limit(0.0373), estimator="paired_proportions")
    assert not shows(Limit(0.0373 / 0.85), estimator="paired_mean")


# -- the interval of one rate, against scipy's, and what it makes of errored items and of none


@pytest.mark.parametrize(("count", "n"), [(0, 200), (1, 200), (7, 50), (49, 50), (50, 50), (0, 1)])
def test_it_is_clopper_and_pearsons(count: int, n: int) -> None:
    for level in (0.8, 0.95):
        found, expected = proportion_interval(count, n, level), binomtest(count, n).proportion_ci(level, "exact")
        assert (found.lower, found.upper) == (pytest.approx(expected.low), pytest.approx(expected.high))
        assert (found.level, found.method) == (level, "Clopper-Pearson")


def test_errored_items_could_have_been_either_and_nothing_scored_has_no_rate() -> None:
    found = proportion_interval(3, 98, errored=2)
    assert found.lower == proportion_interval(3, 100).lower
    assert found.upper == proportion_interval(5, 100).upper
    nothing = proportion_interval(0, 0, errored=4)
    assert math.isnan(nothing.lower)
    assert math.isnan(nothing.upper)
    assert nothing.method == "none: no item was scored"
    for count, n, errored in ((3, 2, 0), (-1, 2, 0), (1, 2, -1)):
        with pytest.raises(ValueError, match="is no proportion"):
            proportion_interval(count, n, errored=errored)


def test_strata_of_other_rates_are_covered_too() -> None:
    rng = np.random.default_rng(3)
    for rates in ([0.0, 0.0, 0.0, 0.2], [0.01, 0.02, 0.05, 0.12], [0.05] * 4):
        counts = sum(rng.binomial(50, rate, 20_000) for rate in rates)
        bounds = {count: proportion_interval(int(count), 200) for count in np.unique(counts)}
        missed = np.array([[bounds[c].lower > 0.05, bounds[c].upper < 0.05] for c in counts]).mean(axis=0)
        assert missed.max() <= 0.025 + 3 * (0.025 / 20_000) ** 0.5
