"""Clustered bootstrap-t: coverage of each one-sided bound on skewed data, exact degenerate cases."""

import dataclasses
import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import beta, norm

from q36eval.records import Clusters
from q36eval.stats import _bootstrap, holm, margin_test, resolved_early, summarize
from q36eval.stats._contrast import sorted_contrast
from tests.q36eval.stats.evidence import Margin as Limit
from tests.q36eval.stats.evidence import bounds_that_decide, items


def documents(per_token, tokens, reference=None, errored=None) -> Clusters:
    sums = [None if side is None else np.array(side) * np.array(tokens) for side in (per_token, reference)]
    return items(*sums, tokens, errored, bounds=None)


@pytest.mark.long
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.2])
def test_each_bound_misses_about_what_it_promises_on_lognormal_documents(
    sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 999)
    rng = np.random.default_rng(21)
    above = below = 0
    for seed in range(300):
        tokens = rng.integers(80, 240, 120).astype(float)
        sums = rng.lognormal(-(sigma**2) / 2, sigma, 120) * tokens  # mean exactly 1 per token
        studentised = _bootstrap.studentise(sorted_contrast(sums, tokens, np.zeros(120), -np.inf, np.inf), seed)
        lower, upper = studentised.bounds(0.025)
        above += upper < 1.0
        below += lower > 1.0
    # 2.5 % promised; the level's calibration holds the upper bound to 4 %, and 300 draws have an error of 1.1 %
    assert above / 300 <= 0.065
    assert below / 300 <= 0.045


def upper_log_spread(means) -> float:
    """The standard deviation of log means, were they lognormal, from their median and their 90 % quantile."""
    return float(np.diff(np.log(np.quantile(means, [0.5, 0.9])))[0] / norm.ppf(0.9))


def test_the_ratio_mean_agrees_with_a_naive_bootstrap() -> None:
    rng = np.random.default_rng(22)
    tokens, per_token = rng.integers(50, 150, 60).astype(float), rng.lognormal(-6, 0.7, 60)
    sums = per_token * tokens
    value, _, effect, interval = summarize(documents(per_token, tokens), "mean")
    assert value == effect == pytest.approx(sums.sum() / tokens.sum())

    def fit(index):
        mean = sums[index].sum() / tokens[index].sum()
        residuals = sums[index] - mean * tokens[index]
        return mean, math.sqrt(len(index) / (len(index) - 1) * (residuals**2).sum()) / tokens[index].sum()

    mean, error = fit(np.arange(60))
    draws = [fit(rng.integers(0, 60, 60)) for _ in range(4000)]
    # the upper bound's level is calibrated to the documents' spread on a log scale
    level = norm.cdf(norm.ppf(0.025) - 0.3 * upper_log_spread(per_token) ** 2)
    low_t, high_t = np.quantile([(m - mean) / e for m, e in draws], [level, 0.975])
    # Monte Carlo error of a 2.5 % quantile of 4,000 draws is about 0.07 standard errors
    assert interval.upper == pytest.approx(mean - low_t * error, abs=0.3 * error)
    assert interval.lower == pytest.approx(mean - high_t * error, abs=0.3 * error)


def test_a_mean_of_almost_nothing_but_zeros_is_bounded_by_the_share_that_is_not() -> None:
    """As two engines give that are alike to the last bit on all texts but a few."""
    tokens = np.full(40, 63)
    for others in range(1, 6):
        per_token = np.zeros(40)
        per_token[:others] = 1e-6 * np.arange(1, others + 1)
        rounding = np.where(per_token, 0.0, 1e-16 * np.arange(1, 41))
        clusters = documents(per_token + rounding, tokens)
        value, _, _, interval = summarize(clusters, "mean")
        share = beta.ppf(0.975, others + 1, 40 - others)
        assert interval.upper == pytest.approx(10 * 1e-6 * others * share)
        assert interval.lower < value < interval.upper
        assert interval.method == "bootstrap-t, above by the share that is not zero"
        for factor, passes in ((1.0001, True), (0.9999, False)):
            test = margin_test(clusters, "mean", Limit("max_value", interval.upper * factor))
            assert (test.p_pass <= 0.025) == passes
        assert margin_test(clusters, "mean", Limit("max_value", 20e-6 * others)).p_pass == 0.0
    # as many that are not zero as every resample holds some of, or a value below zero: the bootstrap's own bound
    assert summarize(documents(np.r_[np.full(6, 1e-6), np.zeros(34)], tokens), "mean")[3].method == "bootstrap-t"
    assert summarize(documents(np.r_[1e-6, -1e-6, np.zeros(38)], tokens), "mean")[3].method == "bootstrap-t"


@pytest.mark.long
@pytest.mark.sized
@pytest.mark.parametrize(("sigma", "most"), [(0.5, 0.005), (1.0, 0.01), (1.5, 0.04)])
@pytest.mark.parametrize("average", [0.5, 2.0, 4.0])
def test_that_bound_misses_about_what_it_promises(sigma: float, most: float, average: float) -> None:
    rng, missed, used = np.random.default_rng(31), 0, 0
    truth = average / 40 * math.exp(sigma**2 / 2)
    while used < 2000:
        sums = (rng.random(40) < average / 40) * rng.lognormal(0.0, sigma, 40)
        sparse = _bootstrap._sparse(sums, np.ones(40)) if sums.any() else None
        if sparse is not None:
            used += 1
            missed += sparse.upper(0.025) < truth
    assert missed / used <= most


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_p_values_and_bounds_agree(sigma: float) -> None:
    rng = np.random.default_rng(23)
    clusters = documents(rng.lognormal(-5, sigma, 50), rng.integers(50, 150, 50))
    bounds_that_decide(clusters, "mean")


def test_an_uncalibrated_p_value_agrees_with_its_bound_exactly() -> None:
    rng = np.random.default_rng(28)
    signed = documents(rng.normal(0, 1, 50), rng.integers(50, 150, 50))
    upper = summarize(signed, "mean")[3].upper
    assert margin_test(signed, "mean", Limit("max_value", upper + 1e-9)).p_pass == 0.025


def test_no_bound_of_a_divergence_is_negative() -> None:
    assert summarize(documents(np.r_[2.0, np.full(9, 1e-3)], np.full(10, 18)), "mean")[3].lower == 0.0


def test_identical_deployments_have_exact_bounds() -> None:
    zero = documents([0.0] * 20, [100] * 20)
    assert summarize(zero, "mean")[3].model_dump(include={"lower", "upper"}) == {"lower": 0.0, "upper": 0.0}
    assert margin_test(zero, "mean", Limit("max_value", 0.014)).p_pass == 0.0
    nll = np.random.default_rng(24).random(30)
    value, reference, effect, interval = summarize(documents(nll, [100] * 30, nll), "perplexity")
    assert value == reference == pytest.approx(math.exp(nll.mean()))
    assert (effect, interval.lower, interval.upper) == (1.0, 1.0, 1.0)


def test_perplexity_retention_sees_a_two_percent_loss() -> None:
    rng = np.random.default_rng(25)
    reference = 1 + rng.random(120)
    for shift, verdict in ((0.0, "pass"), (0.0637, "fail")):  # the limit is log(1/0.979) = 0.0212
        branch = reference + shift + rng.normal(0, 0.02, 120)
        judged = margin_test(documents(branch, [200] * 120, reference), "perplexity", Limit("min_retention", 0.979))
        assert (judged.p_pass <= 0.025, judged.p_fail <= 0.025) == (verdict == "pass", verdict == "fail")


def test_missing_broken_or_scarce_evidence_proves_nothing_but_a_known_bound() -> None:
    limit = Limit("max_value", 1.0)
    lost = documents([0.001] * 200, [100] * 200, errored=[0] * 199 + [50])
    few = documents([0.001, 0.002, 0.003], [100] * 3)
    broken = documents([0.001] * 99 + [math.inf], [100] * 100)
    for clusters in (lost, few, broken):
        judged = margin_test(clusters, "mean", limit)
        assert judged.p_pass == judged.p_fail == 1.0
    why = margin_test(broken, "mean", limit).not_measured
    assert why.code == "not-finite"
    assert summarize(lost, "mean")[3].upper == math.inf
    few = documents([0.1, 0.2, 0.3], [100] * 3)
    half_bounded = few.model_copy(update={"bounds": (0.0, math.inf)})
    bounds = [
        (summary[3].lower, summary[3].upper) for summary in (summarize(few, "mean"), summarize(half_bounded, "mean"))
    ]
    assert bounds == [(-math.inf, math.inf), (0.0, math.inf)]
    assert margin_test(half_bounded, "mean", Limit("max_value", 0.05)).not_measured is None
    assert Clusters.model_validate_json(half_bounded.model_dump_json()) == half_bounded


def test_holm_matches_a_worked_example_and_what_is_resolved_early_stands() -> None:
    # Holm (1979): smallest times 4, next times 3, ... never decreasing
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([math.nan, 0.01]) == pytest.approx([1.0, 0.02])
    assert holm([]) == []

    def early(p_pass: float, p_fail: float) -> str:
        return resolved_early(SimpleNamespace(p_pass=p_pass, p_fail=p_fail), 0.975, 0.025, 4)

    assert [early(p, 1.0) for p in (0.025, 0.0251)] == ["pass", "open"]
    assert [early(1.0, p) for p in (0.00625, 0.0063)] == ["fail", "open"]
    assert max(holm([0.00625, *others])[0] for others in product([0.0, 0.001, 0.1, 1.0], repeat=3)) <= 0.025
    assert holm([0.0063, 0.1, 0.1, 0.1])[0] > 0.025


def test_the_upper_level_is_calibrated_to_the_spread_of_what_cannot_be_negative() -> None:
    rng = np.random.default_rng(27)
    means, units = rng.lognormal(-5, 1.2, 140), np.full(140, 100.0)

    def bounds(sums):
        found = _bootstrap.studentise(sorted_contrast(sums, units, np.zeros(140), -np.inf, np.inf), 1)
        return found, found.bounds(0.025), dataclasses.replace(found, shift=0.0).bounds(0.025)

    found, (lower, upper), (plain_lower, plain_upper) = bounds(means * units)
    assert found.shift == pytest.approx(0.3 * upper_log_spread(means) ** 2)
    assert lower == plain_lower
    assert upper > plain_upper  # which 5.5 % of such corpora put below the truth
    signed, with_shift, without = bounds((means - means.mean()) * units)
    assert (signed.shift, with_shift) == (0.0, without)
    spread = rng.lognormal(-5, 4, 140) * units  # the level stays where there are resamples to tell it
    assert bounds(spread)[0].shift == pytest.approx(0.3 * 1.5**2)
    assert math.isfinite(bounds(spread)[1][1])
    near_zero = np.where(means < np.quantile(means, 0.3), 0.0, means)
    assert bounds(near_zero * units)[0].shift == pytest.approx(found.shift)
    assert bounds(np.where(means < np.quantile(means, 0.7), 0.0, means) * units)[0].shift == pytest.approx(0.3 * 1.5**2)
    # a zero that rounding put below zero leaves the calibration on
    sums = means * units
    lowest = np.where(sums == sums.min(), 0.0, sums)
    for below in (-1e-12, -1e-5 * sums.max()):
        rounded = np.where(lowest == 0.0, below, lowest)
        assert bounds(rounded)[0].shift == bounds(lowest)[0].shift > 0
    assert bounds(np.where(lowest == 0.0, -0.01 * sums.max(), lowest))[0].shift == 0.0


@pytest.mark.long
def test_undeclared_sources_are_the_hole_that_the_docs_name() -> None:
    """Four hundred lognormal values of mean 1; 20 of each source share 80 % of their variance, and nobody says so."""
    rng, decided = np.random.default_rng(34), np.zeros(2)
    for _ in range(300):
        shared = rng.normal(size=20).repeat(20)
        values = np.exp(0.8**0.5 * shared + 0.2**0.5 * rng.normal(size=400) - 0.5)
        test = margin_test(documents(values, [1] * 400), "mean", Limit("max_value", 1.0))
        decided += (test.p_pass <= 0.025, test.p_fail <= 0.025)
    passed, failed = decided / 300  # 0.35 and 0.27, each with a standard error of 0.03
    assert (0.26 < passed < 0.44, 0.18 < failed < 0.36) == (True, True), (passed, failed)
