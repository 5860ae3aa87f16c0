"""Quantiles of clustered units: coverage of each bound, agreement of bounds and p-values, what is not identified."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm

from q36eval.records import Clusters
from q36eval.stats import margin_test, quantile_clusters, summarize
from q36eval.stats._quantile import QuantileInference, _counts_above
from tests.q36eval.stats.evidence import Margin, bounds_that_decide

SIGMA_BETWEEN, SIGMA_WITHIN = 1.0, 1.5
Limit = partial(Margin, "max_value")


def corpus(rng: np.random.Generator, documents: int = 140) -> tuple[np.ndarray, np.ndarray]:
    tokens = rng.integers(100, 300, documents)
    owner = np.repeat(np.arange(documents), tokens)
    effects = np.repeat(rng.normal(0, SIGMA_BETWEEN, documents), tokens)
    return np.exp(-7 + effects + rng.normal(0, SIGMA_WITHIN, owner.size)), owner


def evidence(
    values: np.ndarray, owner: np.ndarray, quantile: float, errored: tuple[int, ...] | None = None
) -> Clusters:
    lost = errored or (0,) * (int(owner.max()) + 1)
    return quantile_clusters(values, owner, lost, quantile, (0.0, math.inf))[1]


@pytest.mark.long
@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_each_bound_misses_about_what_it_promises_on_lognormal_documents(quantile: float) -> None:
    rng = np.random.default_rng(31)
    truth = math.exp(-7 + norm.ppf(quantile) * math.hypot(SIGMA_BETWEEN, SIGMA_WITHIN))
    intervals = [summarize(evidence(*corpus(rng), quantile), "quantile")[3] for _ in range(200)]
    # 2.5 % promised, 1.0-4.0 % seen in 400 corpora; three standard errors of 200 corpora are 3.3 points
    assert sum(interval.upper < truth for interval in intervals) / 200 <= 0.065
    assert sum(interval.lower > truth for interval in intervals) / 200 <= 0.060
    # and they are not wide for nothing: of tokens taken as independent, the interval would be a third of this
    widths = [math.log(i.upper / i.lower) for i in intervals if math.isfinite(i.upper)]
    assert len(widths) >= 190
    assert np.mean(widths) < 0.8


def test_the_estimate_and_the_counts_above_are_those_of_naive_ones() -> None:
    values, owner = corpus(np.random.default_rng(32), 30)
    for quantile in (0.5, 0.9, 0.99, 0.999):
        expected = np.quantile(values, quantile, method="inverted_cdf")
        estimate, clusters = quantile_clusters(values, owner, (0,) * 30, quantile)
        assert estimate == expected == summarize(clusters, "quantile")[0]
    rng = np.random.default_rng(33)
    values, owner = rng.integers(0, 9, 200).astype(float), rng.integers(0, 7, 200)
    values[3] = math.inf
    thresholds = np.array([-1.0, 0.0, 3.0, 8.0])
    naive = [[sum((values > t) & (owner == c)) for c in range(7)] for t in thresholds]
    assert _counts_above(values, owner, thresholds, 7).tolist() == naive


def test_a_p_value_is_that_of_a_naive_bootstrap_of_the_share() -> None:
    values, owner = corpus(np.random.default_rng(34), 60)
    clusters = evidence(values, owner, 0.9)
    margin = clusters.tail.thresholds[40]
    above, units = np.bincount(owner, values > margin), np.bincount(owner).astype(float)

    def fit(rows: np.ndarray) -> tuple[float, float]:
        share = above[rows].sum() / units[rows].sum()
        residuals = above[rows] - share * units[rows]
        return share, math.sqrt(60 / 59 * (residuals**2).sum()) / units[rows].sum()

    rng = np.random.default_rng(35)
    share, error = fit(np.arange(60))
    draws = [fit(rng.integers(0, 60, 60)) for _ in range(4000)]
    naive = np.mean([(s - share) / e <= (share - 0.1) / error for s, e in draws])
    # the test takes thresholds below the margin, so the one just above it stands for this one
    found = QuantileInference(clusters).p_at_least(clusters.tail.thresholds[41])
    assert 0.02 < naive < 0.98
    assert found == pytest.approx(naive, abs=0.03)  # both are Monte Carlo figures: standard error 0.013 at most


@pytest.mark.long
def test_bounds_and_p_values_agree_and_p_values_fall_as_the_margin_rises() -> None:
    clusters = evidence(*corpus(np.random.default_rng(36)), 0.99)
    interval = bounds_that_decide(clusters, "quantile")
    assert 0 < interval.lower < interval.upper < math.inf
    margins = np.geomspace(1e-6, 10, 60)
    tests = [margin_test(clusters, "quantile", Limit(margin)) for margin in margins]
    assert all(a.p_pass >= b.p_pass and a.p_fail <= b.p_fail for a, b in pairwise(tests))
    assert (tests[-1].p_pass < 0.001, tests[-1].p_fail) == (True, 1.0)
    assert (tests[0].p_pass, tests[0].p_fail < 0.001) == (1.0, True)


def test_a_quantile_that_hangs_on_few_clusters_has_no_upper_bound() -> None:
    values, owner = corpus(np.random.default_rng(37), 20)
    interval = summarize(evidence(values, owner, 0.999), "quantile")[3]
    assert interval.upper == math.inf
    assert "too few" in interval.method
    assert margin_test(evidence(values, owner, 0.999), "quantile", Limit(1e9)).p_pass == 1.0
    lone = summarize(evidence(values, np.zeros(values.size, dtype=int), 0.5), "quantile")
    assert lone[0] == np.quantile(values, 0.5, method="inverted_cdf")
    assert (lone[3].lower, lone[3].upper) == (0.0, math.inf)


def test_equal_units_have_exact_bounds_and_what_is_no_number_lies_above_everything() -> None:
    zero = evidence(np.zeros(2000), np.repeat(np.arange(20), 100), 0.99)
    value, _, _, interval = summarize(zero, "quantile")
    assert (value, interval.lower, interval.upper) == (0.0, 0.0, 0.0)
    assert margin_test(zero, "quantile", Limit(0.014)).p_pass == 0.0
    assert margin_test(zero, "quantile", Limit(0.0)).p_pass == 1.0
    values, owner = corpus(np.random.default_rng(38), 40)
    values[owner < 30] = np.where(np.arange((owner < 30).sum()) % 40 == 0, math.nan, values[owner < 30])
    value, _, _, interval = summarize(evidence(values, owner, 0.99), "quantile")
    assert value == interval.upper == math.inf
    assert math.isfinite(interval.lower)


def test_errored_units_count_against_both_answers() -> None:
    values, owner = corpus(np.random.default_rng(39))
    whole, part = evidence(values, owner, 0.99), evidence(values, owner, 0.99, (0,) * 139 + (250,))
    kept, lost = summarize(whole, "quantile")[3], summarize(part, "quantile")[3]
    assert lost.upper > kept.upper
    assert lost.lower <= kept.lower
