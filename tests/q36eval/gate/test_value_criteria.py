"""Criteria over values: quantiles, maxima and ratios, which are no plain mean, and how many clusters a mean takes."""

import math

import numpy as np
import pytest

from q36eval.gate import CriterionResult, CriterionVerdict, Policy, decide
from q36eval.gate.judgement import judge
from q36eval.records import Direction, Measurement, ProbeName
from q36eval.stats import quantile_clusters, summarize
from tests.q36eval.gate.evidence import criterion, failure_rate, measurement, only
from tests.q36eval.stats.evidence import items


def policy(metric: str, value: float, kind: str = "max_value") -> Policy:
    return only(kind, value, metric=metric)


@pytest.fixture(scope="module")
def p99() -> Measurement:
    rng = np.random.default_rng(51)
    owner = np.repeat(np.arange(140), 200)
    values = rng.lognormal(-7, 1.5, owner.size) * np.repeat(rng.lognormal(0, 0.5, 140), 200)
    _, clusters = quantile_clusters(values, owner, (0,) * 140, 0.99, (0.0, math.inf))
    return measurement(ProbeName.KL, "kl_p99", clusters, "quantile")


def test_a_margin_on_a_quantile_is_judged_on_its_bounds(p99: Measurement) -> None:
    bounds = p99.effect_interval
    for margin, verdict in (
        (bounds.upper * 1.01, CriterionVerdict.PASS),
        ((bounds.upper + bounds.lower) / 2, CriterionVerdict.INCONCLUSIVE),
        (bounds.lower * 0.99, CriterionVerdict.FAIL),
    ):
        (result,) = decide(policy("kl_p99", margin), [p99]).criteria
        assert result.verdict is verdict
        assert (result.figure, result.limit) == (p99.value, margin)
        assert result.loss_interval == bounds


def test_what_its_sample_does_not_bound_never_passes_and_an_infinite_quantile_is_not_measured() -> None:
    clusters = items([0.01] * 120, units=[100] * 120, bounds=(0.0, math.inf))
    greatest = measurement(ProbeName.KL, "kl_max", clusters, "maximum")
    assert decide(policy("kl_max", 1.0), [greatest]).criteria[0].verdict is CriterionVerdict.INCONCLUSIVE
    assert decide(policy("kl_max", 0.001), [greatest]).criteria[0].verdict is CriterionVerdict.FAIL
    owner = np.repeat(np.arange(100), 10)
    values = np.where(np.arange(1000) % 10 == 0, math.nan, 0.1)
    _, clusters = quantile_clusters(values, owner, (0,) * 100, 0.99, (0.0, math.inf))
    found = measurement(ProbeName.KL, "kl_p99", clusters, "quantile")
    assert summarize(clusters, "quantile")[0] == math.inf
    assert decide(policy("kl_p99", 1e9), [found]).criteria[0].verdict is CriterionVerdict.NOT_MEASURED


def test_a_margin_that_does_not_suit_is_refused_in_words(p99: Measurement) -> None:
    (result,) = decide(policy("kl_p99", 0.9, "min_retention"), [p99]).criteria
    assert (result.verdict, result.code) == (CriterionVerdict.NOT_MEASURED, "margin-unsuited")
    assert "min_retention" in result.reason
    bare = p99.model_copy(update={"clusters": None})
    assert decide(policy("kl_p99", 1.0), [bare]).criteria[0].verdict is CriterionVerdict.NOT_MEASURED


def test_an_exact_difference_of_rates_passes_where_betting_cannot() -> None:
    asks = policy("failure_rate", 0.02, "max_increase")
    same = failure_rate([0] * 200, [0] * 200, "all").model_copy(update={"probe": ProbeName.KL})
    exact = measurement(ProbeName.KL, "failure_rate", same.clusters, "paired_proportions")
    (betting_result,), (result,) = (decide(asks, [found]).criteria for found in (same, exact))
    assert betting_result.verdict is CriterionVerdict.INCONCLUSIVE
    assert result.verdict is CriterionVerdict.PASS
    assert result.loss_interval == exact.effect_interval


def test_a_ratio_of_margins_is_judged_from_thirty_clusters_on() -> None:
    rng = np.random.default_rng(52)
    reference = rng.gamma(2.0, 3.0, 60)
    branch = 0.98 * reference + rng.normal(0, 0.1, 60)

    def judged(n: int, least: float):
        clusters = items(branch[:n], reference[:n], bounds=(-1e4, 1e4))
        found = measurement(ProbeName.KL, "decisive_margin_ratio", clusters, "ratio", Direction.HIGHER_IS_BETTER)
        return decide(policy("decisive_margin_ratio", least, "min_recovery"), [found]).criteria[0]

    assert judged(60, 0.9).verdict is CriterionVerdict.PASS
    assert judged(60, 0.9).figure == pytest.approx(branch.sum() / reference.sum())
    assert judged(60, 1.0).verdict is CriterionVerdict.FAIL
    assert (judged(29, 0.9).code, judged(29, 0.9).reason[-3:]) == ("too-few-clusters", " 30")


def divergences(lengths: list[int]) -> Measurement:
    units = np.array(lengths)
    sums = units * np.random.default_rng(0).lognormal(-6, 0.3, len(units))
    return measurement(ProbeName.KL, "kl_divergence", items(sums, units=units, bounds=None), "mean")


def by_clusters(min_clusters: int | None, lengths: list[int]) -> CriterionResult:
    return judge(criterion("max_value", 0.1, min_clusters=min_clusters), [divergences(lengths)], [])


def test_a_hundred_documents_of_which_ten_hold_the_tokens_are_not_a_hundred() -> None:
    assert by_clusters(100, [300] * 140).verdict is CriterionVerdict.INCONCLUSIVE  # judged, before Holm
    refused = by_clusters(100, [200] * 130 + [8000] * 10)
    assert (refused.verdict, refused.code) == (CriterionVerdict.NOT_MEASURED, "too-few-clusters")
    assert "17 clusters" in refused.reason
    assert "100" in refused.reason
    # a policy that says nothing does not pass on eight documents
    assert by_clusters(None, [300] * 8).verdict is CriterionVerdict.NOT_MEASURED
    assert by_clusters(None, [300] * 30).p_pass < 0.025
    assert by_clusters(8, [300] * 8).p_pass < 0.025
