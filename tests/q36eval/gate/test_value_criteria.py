"""Criteria over ratios and exact differences, which are no plain mean, and how many clusters a mean takes."""

import numpy as np
import pytest

from q36eval.gate import CriterionResult, CriterionVerdict, Policy, decide
from q36eval.gate.judgement import judge
from q36eval.records import Clusters, Direction, Measurement, ProbeName
from tests.q36eval.gate.evidence import criterion, failure_rate, measurement, only


def policy(metric: str, value: float, kind: str = "max_value") -> Policy:
    return only(kind, value, metric=metric)


def test_a_margin_that_does_not_suit_is_refused() -> None:
    found = divergences([300] * 140)
    (result,) = decide(policy("kl_divergence", 0.9, "min_retention"), [found]).criteria
    assert (result.verdict, result.code) == (CriterionVerdict.NOT_MEASURED, "margin-unsuited")
    bare = found.model_copy(update={"clusters": None})
    assert decide(policy("kl_divergence", 1.0), [bare]).criteria[0].verdict is CriterionVerdict.NOT_MEASURED


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
        columns = {"branch": tuple(branch[:n]), "reference": tuple(reference[:n]), "bounds": (-1e4, 1e4)}
        clusters = Clusters(units=(1,) * n, errored=(0,) * n, **columns)
        found = measurement(ProbeName.KL, "decisive_margin_ratio", clusters, "ratio", Direction.HIGHER_IS_BETTER)
        return decide(policy("decisive_margin_ratio", least, "min_recovery"), [found]).criteria[0]

    assert judged(60, 0.9).verdict is CriterionVerdict.PASS
    assert judged(60, 0.9).figure == pytest.approx(branch.sum() / reference.sum())
    assert judged(60, 1.0).verdict is CriterionVerdict.FAIL
    assert (judged(29, 0.9).code, judged(29, 0.9).reason[-3:]) == ("too-few-clusters", " 30")


def divergences(lengths: list[int]) -> Measurement:
    units = np.array(lengths)
    sums = units * np.random.default_rng(0).lognormal(-6, 0.3, len(units))
    clusters = Clusters(units=tuple(lengths), branch=tuple(map(float, sums)), errored=(0,) * len(lengths))
    return measurement(ProbeName.KL, "kl_divergence", clusters, "mean")


def by_clusters(min_clusters: int | None, lengths: list[int]) -> CriterionResult:
    return judge(criterion("max_value", 0.1, min_clusters=min_clusters), [divergences(lengths)], [])


def test_a_hundred_documents_of_which_ten_hold_the_tokens_are_not_a_hundred() -> None:
    assert by_clusters(100, [300] * 140).verdict is CriterionVerdict.INCONCLUSIVE  # judged, before Holm
    refused = by_clusters(100, [200] * 130 + [8000] * 10)
    assert (refused.verdict, refused.code) == (CriterionVerdict.NOT_MEASURED, "too-few-clusters")
    assert "17 clusters" in refused.reason
    assert "100" in refused.reason


def test_a_policy_that_says_nothing_does_not_pass_on_eight_documents() -> None:
    assert by_clusters(None, [300] * 8).verdict is CriterionVerdict.NOT_MEASURED
    assert by_clusters(None, [300] * 30).p_pass < 0.025
    assert by_clusters(8, [300] * 8).p_pass < 0.025
