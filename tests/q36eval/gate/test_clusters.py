"""How many clusters a criterion has: counted by weight, and never as few as show no tail."""

import numpy as np
import pytest

from q36eval.gate.judge import effective_clusters, judge
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Clusters, Measurement, ProbeName
from tests.q36eval.gate.evidence import criterion, measurement


def divergences(lengths: list[int]) -> Measurement:
    units = np.array(lengths)
    sums = units * np.random.default_rng(0).lognormal(-6, 0.3, len(units))
    clusters = Clusters(units=tuple(lengths), branch=tuple(map(float, sums)), errored=(0,) * len(lengths))
    return measurement(ProbeName.KL, "kl_divergence", clusters, "mean")


def judged(min_clusters: int | None, lengths: list[int]) -> CriterionResult:
    return judge(criterion("max_value", 0.1, min_clusters=min_clusters), [divergences(lengths)], [])


@pytest.mark.parametrize(
    ("units", "expected"), [([], 0), ([0, 0], 0), ([7], 1), ([5] * 140, 140), ([200] * 130 + [8000] * 10, 17)]
)
def test_clusters_count_by_weight(units: list[int], expected: int) -> None:
    assert effective_clusters(units) == expected


def test_a_hundred_documents_of_which_ten_hold_the_tokens_are_not_a_hundred() -> None:
    assert judged(100, [300] * 140).verdict is CriterionVerdict.INCONCLUSIVE  # judged, before Holm
    refused = judged(100, [200] * 130 + [8000] * 10)
    assert (refused.verdict, refused.code) == (CriterionVerdict.NOT_MEASURED, "too-few-clusters")
    assert "17 clusters" in refused.reason
    assert "100" in refused.reason


def test_a_policy_that_says_nothing_does_not_pass_on_eight_documents() -> None:
    assert judged(None, [300] * 8).verdict is CriterionVerdict.NOT_MEASURED
    assert judged(None, [300] * 30).p_pass < 0.025
    assert judged(8, [300] * 8).p_pass < 0.025
