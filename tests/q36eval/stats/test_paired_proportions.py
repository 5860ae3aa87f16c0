"""The exact paired test: against naive enumeration, its size, its order, and evidence that allows no exact test."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binomtest, multinomial

from q36eval.records import Clusters, Direction
from q36eval.stats import as_expected, can_show, margin_test, summarize
from q36eval.stats._pairs import NUISANCE, ExactDifference
from tests.profiles import sized
from tests.q36eval.stats.evidence import Margin, items
from tests.q36eval.stats.paired_outcomes import Verdicts, distribution, mixtures

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
    drawn = sum(rng.multinomial(items, (w, b, 1 - w - b), size=40_000) for items, w, b in rates)
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
