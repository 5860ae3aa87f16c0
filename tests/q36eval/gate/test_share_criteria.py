"""Criteria on the share of clusters beyond a threshold, and means whose heavy tail makes their bound untrustworthy."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from q36eval.gate import CriterionVerdict, Policy, decide
from q36eval.records import Measurement, ProbeName
from q36eval.stats import ShareBeyond, least_clusters, unseen_share
from tests.q36eval.gate.evidence import criterion, divergence, measurement, only
from tests.q36eval.stats.evidence import items

PASS, FAIL, INCONCLUSIVE = CriterionVerdict.PASS, CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE


def policy(**share: Any) -> Policy:
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
    assert verdict(policy(), worst_documents(368, 0)) is PASS
    assert verdict(policy(), worst_documents(367, 0)) is INCONCLUSIVE  # 0.99 ** 367 > 0.025
    few = decide(policy(), [worst_documents(367, 0)]).criteria[1]
    assert few.code == "too-few-clusters"
    assert few.reason.startswith("367 ")
    assert few.reason.endswith(" 368")
    assert verdict(policy(), worst_documents(367, 1)) is INCONCLUSIVE
    assert verdict(policy(), worst_documents(90, 10)) is FAIL
    assert verdict(policy(), worst_documents(367, 0, errored=1)) is INCONCLUSIVE  # it may be the one
    assert verdict(policy(), worst_documents(360, 20)) is FAIL
    assert verdict(policy(beyond_margins=10.1), worst_documents(360, 20)) is PASS
    assert verdict(policy(beyond_margins=None, of=None, beyond=0.14), worst_documents(360, 20)) is FAIL
    for clean, beyond in ((990, 3), (600, 5), (400, 0)):
        share = ShareBeyond(worst_documents(clean, beyond).clusters, "maximum", 0.14)  # type: ignore[arg-type]
        assert share.p_at_least(0.01) == pytest.approx(binom.cdf(beyond, clean + beyond, 0.01))
        assert share.p_at_most(0.01) == pytest.approx(binom.sf(beyond - 1, clean + beyond, 0.01))
        bound = share.interval(0.95).upper
        assert binom.cdf(beyond, clean + beyond, bound) == pytest.approx(0.025)


def test_a_perplexity_is_judged_by_its_logarithm_per_unit() -> None:
    units, reference = np.full(400, 50), np.full(400, 150.0)
    losses = np.where(np.arange(400) < 16, 0.25, 0.001)
    clusters = items(reference + losses * units, reference, units, bounds=None)
    found = measurement(ProbeName.KL, "perplexity", clusters, "perplexity")
    for beyond, expected in ((0.24, FAIL), (0.26, PASS)):
        assert verdict(only("max_share", 0.01, margin={"beyond": beyond}, metric="perplexity"), found) is expected


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
        policy(**wrong)


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
    assert judged(heavy, 3.0).verdict is FAIL
