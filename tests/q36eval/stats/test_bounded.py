"""Betting tests: validity by simulation, against the exact binomial test, power where the sandbox needs it."""

import numpy as np
import pytest
from scipy.stats import binomtest

from q36eval.records import Direction
from q36eval.stats import margin_test, summarize
from q36eval.stats._betting import p_mean_at_least, p_mean_at_most
from q36eval.stats._contrast import linear_contrast
from tests.q36eval.stats.evidence import Margin as Limit
from tests.q36eval.stats.evidence import items


def paired_draw(rng, n, regressions, improvements):
    """Reference and branch answers in which the given shares of all items flip."""
    draw = rng.random(n)
    reference = np.where(draw < regressions, 1, np.where(draw < regressions + improvements, 0, rng.random(n) < 0.8))
    branch = np.where(draw < regressions, 0, np.where(draw < regressions + improvements, 1, reference))
    return branch, reference


def test_no_regression_in_400_items_bounds_the_loss_near_one_percent() -> None:
    value, reference, effect, interval = summarize(items([1] * 400, [1] * 400), "paired_mean")
    assert (value, reference, effect) == (1.0, 1.0, 0.0)
    assert -0.0115 < interval.lower < 0 < interval.upper < 0.0115
    # the exact binomial bound cannot be beaten
    assert interval.upper > binomtest(0, 400).proportion_ci(0.95, "exact").high


@pytest.mark.parametrize("failures", [0, 3, 20, 100, 200])
def test_p_values_are_never_far_below_the_exact_binomial_ones(failures: int) -> None:
    contrast = linear_contrast(items([1] * failures + [0] * (200 - failures)), 1.0)
    for margin in (0.02, 0.1, 0.3, 0.6):
        exact_below = binomtest(failures, 200, margin, alternative="less").pvalue
        exact_above = binomtest(failures, 200, margin, alternative="greater").pvalue
        # an e-value's p-value is conservative on average; 1/5 leaves room for the one outcome where it is not
        assert p_mean_at_least(contrast, margin) >= exact_below / 5
        assert p_mean_at_most(contrast, margin) >= exact_above / 5


@pytest.mark.long
def test_at_the_margin_false_passes_and_false_fails_stay_below_alpha() -> None:
    rng = np.random.default_rng(11)
    passes = fails = 0
    for _ in range(1500):
        branch, reference = paired_draw(rng, 200, 0.08, 0.03)  # true loss exactly 0.05
        contrast = linear_contrast(items(branch, reference), -1.0, 1.0)
        passes += p_mean_at_least(contrast, 0.05) <= 0.05
        fails += p_mean_at_most(contrast, 0.05) <= 0.05
    # Ville's inequality promises <= 5 %; 6.7 % is three standard errors above that
    assert passes / 1500 <= 0.067
    assert fails / 1500 <= 0.067


@pytest.mark.long
@pytest.mark.parametrize("skewed", [False, True])
def test_clusters_of_several_items_keep_coverage(skewed: bool) -> None:
    """Items correlate within clusters, whose sizes differ a little; or whole clusters fail together, the worst case."""
    rng = np.random.default_rng(12)
    misses = 0
    for _ in range(400):
        if skewed:
            size = np.minimum(rng.zipf(2.2, 120), 12)
            lost = size * (rng.random(120) < 0.1)
        else:
            size = rng.integers(1, 7, 40)
            lost = rng.binomial(size, rng.beta(1, 9, 40))  # mean loss 0.1
        interval = summarize(items(lost, units=size), "mean", level=0.9)[3]
        misses += not interval.lower <= 0.1 <= interval.upper
    assert misses / 400 <= 0.13  # 10 % promised, plus two standard errors


def test_one_fact_asked_nine_times_does_not_disarm_the_test() -> None:
    sizes = [1] * 172 + [2] * 61 + [3] * 36 + [4] * 4 + [5] * 4 + [6] * 3 + [9]
    right = [round(0.8 * size) for size in sizes]
    # what weighs less could all be lost, so 5 % cannot be excluded here: a cap that says so passed half of the branches
    # that had lost just that
    limit, higher = Limit("min_recovery", 0.92), Direction.HIGHER_IS_BETTER

    def judged(branch: list[int]):
        return margin_test(items(branch, right, sizes), "paired_mean", limit, direction=higher)

    assert judged(right).p_pass <= 0.025
    # all that was lost lies in the clusters that weigh less: the plain mean still forbids a PASS
    hollow = judged([r if size <= 3 else 0 for r, size in zip(right, sizes, strict=True)])
    assert hollow.loss > hollow.limit
    assert hollow.p_pass == 1.0
    assert hollow.loss_interval.lower <= hollow.loss <= hollow.loss_interval.upper


@pytest.mark.long
def test_what_only_large_clusters_lose_is_no_pass_at_the_margin() -> None:
    """Questions that are asked at six lengths, beside others that are asked once; a branch loses the former alone."""
    rng = np.random.default_rng(21)
    sizes = np.array([1] * 300 + [6] * 12)
    limit, share = Limit("min_recovery", 0.95), 0.05 * sizes.sum() / 72
    passed = 0
    for _ in range(300):
        kept = np.where(sizes == 6, 6.0 * (rng.random(sizes.size) >= share), 1.0)
        test = margin_test(items(kept, sizes, sizes), "paired_mean", limit, direction=Direction.HIGHER_IS_BETTER)
        passed += test.p_pass <= 0.025
    assert passed / 300 <= 0.043, "2.5 % promised, plus two standard errors"


def test_errored_items_count_worst_for_pass_and_best_for_fail() -> None:
    clean, errored, too_many = (
        margin_test(
            items([0] * 400, [0] * 400, errored=[1] * lost + [0] * (400 - lost)),
            "paired_mean",
            Limit("max_increase", 0.03),
            direction=Direction.LOWER_IS_BETTER,
        )
        for lost in (0, 4, 5)
    )
    assert errored.p_pass > 100 * clean.p_pass
    assert errored.p_fail == 1.0
    assert too_many.p_pass == too_many.p_fail == 1.0
    assert too_many.not_measured.code == "errored"
    assert "5 of 400" in too_many.not_measured.text


def test_degenerate_evidence_never_passes() -> None:
    higher = Direction.HIGHER_IS_BETTER
    for clusters in (
        items([]),
        items([float("nan")] * 200, [1] * 200),
        items([2] * 200, [1] * 200),
        items([0] * 9, [0] * 9),
    ):
        judged = margin_test(clusters, "paired_mean", Limit("min_recovery", 0.9), direction=higher)
        assert judged.p_pass == judged.p_fail == 1.0
        assert judged.not_measured
    value, _, effect, interval = summarize(items([]), "mean")
    assert np.isnan([value, effect, interval.lower, interval.upper]).all()
