"""Criteria over values that are no plain mean, over shares of clusters, and how many clusters a mean takes."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from q36eval.gate import CriterionResult, CriterionVerdict, Policy, decide
from q36eval.gate.judgement import judge
from q36eval.records import Direction, Measurement, ProbeName
from q36eval.reports.story import notes
from q36eval.stats import ShareBeyond, least_clusters, quantile_clusters, summarize, unseen_share
from tests.q36eval.gate.evidence import criterion, divergence, measurement, only
from tests.q36eval.stats.evidence import items


def policy(metric: str, value: float, kind: str = "max_value") -> Policy:
    return only(kind, value, metric=metric)


def test_a_margin_on_a_quantile_is_judged_on_its_bounds_and_one_that_does_not_suit_refused() -> None:
    rng = np.random.default_rng(51)
    owner = np.repeat(np.arange(140), 200)
    values = rng.lognormal(-7, 1.5, owner.size) * np.repeat(rng.lognormal(0, 0.5, 140), 200)
    _, clusters = quantile_clusters(values, owner, (0,) * 140, 0.99, (0.0, math.inf))
    p99 = measurement(ProbeName.KL, "kl_p99", clusters, "quantile")
    bounds = p99.effect_interval
    for margin, verdict in (
        (bounds.upper * 1.01, CriterionVerdict.PASS),
        ((bounds.upper + bounds.lower) / 2, CriterionVerdict.INCONCLUSIVE),
        (bounds.lower * 0.99, CriterionVerdict.FAIL),
    ):
        result = decide(policy("kl_p99", margin), [p99]).criteria[0]
        assert result.verdict is verdict
        assert (result.figure, result.limit) == (p99.value, margin)
        assert result.loss_interval == bounds
    result = decide(policy("kl_p99", 0.9, "min_retention"), [p99]).criteria[0]
    assert (result.verdict, result.code) == (CriterionVerdict.NOT_MEASURED, "margin-unsuited")
    assert "min_retention" in result.reason
    bare = p99.model_copy(update={"clusters": None})
    assert decide(policy("kl_p99", 1.0), [bare]).criteria[0].verdict is CriterionVerdict.NOT_MEASURED


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


def by_clusters(min_clusters: int | None, lengths: list[int]) -> CriterionResult:
    units = np.array(lengths)
    sums = units * np.random.default_rng(0).lognormal(-6, 0.3, len(units))
    found = measurement(ProbeName.KL, "kl_divergence", items(sums, units=units, bounds=None), "mean")
    return judge(criterion("max_value", 0.1, min_clusters=min_clusters), [found], [])


def test_a_hundred_documents_of_which_ten_hold_the_tokens_are_not_a_hundred() -> None:
    assert by_clusters(100, [300] * 140).verdict is CriterionVerdict.INCONCLUSIVE  # judged, before Holm
    refused = by_clusters(100, [200] * 130 + [8000] * 10)
    assert (refused.verdict, refused.code) == (CriterionVerdict.NOT_MEASURED, "too-few-clusters")
    assert "17 equal clusters" in refused.reason
    assert "100" in refused.reason
    # a policy that says nothing does not pass on eight documents
    assert by_clusters(None, [300] * 8).verdict is CriterionVerdict.NOT_MEASURED
    assert by_clusters(None, [300] * 30).p_pass < 0.025
    assert by_clusters(8, [300] * 8).p_pass < 0.025


# -- the share of clusters beyond a threshold, and means whose heavy tail makes their bound untrustworthy

PASS, FAIL, INCONCLUSIVE = CriterionVerdict.PASS, CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE


def tail_policy(**share: Any) -> Policy:
    tail = {"beyond_margins": 10, "of": "kl"} | {key: each for key, each in share.items() if key != "value"}
    return Policy(
        name="p",
        criteria=(
            criterion("max_value", 0.014, id="kl"),
            criterion("max_share", share.get("value", 0.01), margin=tail, id="kl-tail", metric="kl_document_max"),
        ),
    )


def worst_documents(clean: int, beyond: int, errored: int = 0) -> Measurement:
    """Sources whose worst document diverges by 0.01, by 0.1401 (10 margins of 0.014 and a little more), or errored."""
    worst = [0.01] * clean + [0.1401] * beyond + [0.0] * errored
    clusters = items(worst, errored=[0] * (clean + beyond) + [1] * errored, bounds=(0.0, math.inf))
    return measurement(ProbeName.KL, "kl_document_max", clusters, "maximum")


def verdict(asked: Policy, found: Measurement) -> CriterionVerdict:
    return next(r.verdict for r in decide(asked, [found]).criteria if r.metric == found.metric)


def test_a_share_is_judged_exactly_at_the_threshold_that_another_margin_gives() -> None:
    assert (least_clusters(0.01, 0.975), least_clusters(0.025, 0.975)) == (368, 146)
    assert unseen_share(62, 0.975) == pytest.approx(0.058, abs=0.0005)
    assert (1 - unseen_share(400, 0.975)) ** 400 == pytest.approx(0.025)
    assert verdict(tail_policy(), worst_documents(368, 0)) is PASS
    assert verdict(tail_policy(), worst_documents(367, 0)) is INCONCLUSIVE  # 0.99 ** 367 > 0.025
    few = decide(tail_policy(), [worst_documents(367, 0)]).criteria[1]
    assert few.code == "too-few-clusters"
    assert few.reason.startswith("367 ")
    assert few.reason.endswith(" 368")
    assert "A mean over 1,006 sources, taken as independent, may miss what fewer than 0.37 % of them hold" in " ".join(
        notes(decide(tail_policy(), [worst_documents(1006, 0)]), None)
    )
    assert verdict(tail_policy(), worst_documents(367, 1)) is INCONCLUSIVE
    assert verdict(tail_policy(), worst_documents(90, 10)) is FAIL
    assert verdict(tail_policy(), worst_documents(367, 0, errored=1)) is INCONCLUSIVE  # it may be the one
    assert verdict(tail_policy(), worst_documents(360, 20)) is FAIL
    assert verdict(tail_policy(beyond_margins=10.1), worst_documents(360, 20)) is PASS
    assert verdict(tail_policy(beyond_margins=None, of=None, beyond=0.14), worst_documents(360, 20)) is FAIL
    for clean, beyond in ((990, 3), (600, 5), (400, 0)):
        share = ShareBeyond(worst_documents(clean, beyond).clusters, 0.14)  # type: ignore[arg-type]
        assert share.p_at_least(0.01) == pytest.approx(binom.cdf(beyond, clean + beyond, 0.01))
        assert share.p_at_most(0.01) == pytest.approx(binom.sf(beyond - 1, clean + beyond, 0.01))
        bound = share.interval(0.95).upper
        assert binom.cdf(beyond, clean + beyond, bound) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"of": "no-such"}, "'no-such'"),
        ({"of": "kl-tail"}, "'kl-tail'"),
        ({"of": None}, "beyond_margins and of"),
        ({"of": None, "beyond_margins": None}, "names a threshold"),
        ({"value": 0.0}, "lies between 0 and 1"),
    ],
)
def test_a_share_without_a_threshold_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tail_policy(**wrong)


def test_a_bound_near_the_margin_is_not_trusted_where_the_tail_is_heavy() -> None:
    rng = np.random.default_rng(3)

    def judged(values: np.ndarray, upper_over_margin: float) -> Any:
        found = divergence(values.tolist(), tokens=100)
        return decide(only("max_value", found.effect_interval.upper / upper_over_margin), [found]).criteria[0]

    heavy, light = 0.001 * (1 + rng.pareto(1.8, 400)), rng.gamma(4.0, 0.001, 400)
    doubted = judged(heavy, 0.9)
    assert doubted.verdict is INCONCLUSIVE
    assert doubted.code == "heavy-tail"
    assert judged(heavy, 0.8).verdict is PASS
    assert judged(light, 0.99).verdict is PASS
    few = np.where(np.arange(400) < 20, heavy, 0.0)
    assert (judged(few, 0.9).code, judged(few, 0.8).verdict) == ("heavy-tail", PASS)
    assert judged(heavy, 3.0).verdict is FAIL
