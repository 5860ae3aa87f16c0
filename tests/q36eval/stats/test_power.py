"""What a set of items can show, against the margin test itself."""

from dataclasses import dataclass

import pytest
from scipy.stats import binom

from q36eval.records import Clusters, Direction, Schedule
from q36eval.stats import as_expected, can_show, margin_test, power, tightest_limit

HIGHER = Direction.HIGHER_IS_BETTER


@dataclass(frozen=True)
class Limit:
    kind: str
    value: float


def test_power_is_the_sum_over_all_outcomes_of_the_margin_test() -> None:
    n, right, flips = 80, 40, 0.05
    limit = Limit("max_increase", 0.2)
    found = power(as_expected([1] * n, 0.5), limit, confidence=0.95, alpha=0.05, criteria=2, flips=flips)

    def exact(lost_rate: float, gained_rate: float) -> tuple[float, float]:
        passed = failed = 0.0
        for lost in range(right + 1):
            for gained in range(13):
                chance = binom.pmf(lost, right, lost_rate) * binom.pmf(gained, n - right, gained_rate)
                if chance < 1e-5:
                    continue
                branch = (1.0,) * (right - lost) + (0.0,) * (lost + n - right - gained) + (1.0,) * gained
                clusters = Clusters(
                    units=(1,) * n,
                    branch=branch,
                    reference=(1.0,) * right + (0.0,) * (n - right),
                    errored=(0,) * n,
                    bounds=(0.0, 1.0),
                )
                test = margin_test(clusters, "paired_mean", limit, direction=HIGHER)
                passed += chance * (test.p_pass <= 1.0 - 0.95)
                failed += chance * (2 * test.p_fail <= 0.05)
        return passed, failed

    # 400 simulated branches know a share of 80 % to 2 points: three standard errors, and the bisection's step
    assert found.passes == pytest.approx(exact(flips, flips)[0], abs=0.06)
    drop = found.detected[0.8]
    assert drop is not None
    assert exact(flips + 2 * drop, flips)[1] == pytest.approx(0.8, abs=0.06)
    assert exact(found.most_flips, found.most_flips)[0] == pytest.approx(0.95, abs=0.035)


def test_a_margin_tighter_than_the_items_can_show_is_known_before_they_are_asked() -> None:
    items = as_expected([1] * 525, 0.9, Schedule(largest=1, blocks=tuple(n // 70 for n in range(525))))
    assert sum(items.branch) == pytest.approx(0.9 * 525, abs=1)
    assert can_show(items, Limit("min_recovery", 0.95), confidence=0.975, direction=HIGHER)
    assert not can_show(items, Limit("min_recovery", 0.99), confidence=0.975, direction=HIGHER)
    tightest = tightest_limit(items, "min_recovery", confidence=0.975)
    assert tightest is not None
    assert can_show(items, Limit("min_recovery", 1.0 - tightest), confidence=0.975, direction=HIGHER)
    assert not can_show(items, Limit("min_recovery", 1.0 - tightest / 1.03), confidence=0.975, direction=HIGHER)
    found = power(items, Limit("min_recovery", 0.99), confidence=0.975, alpha=0.025, criteria=8)
    assert (found.can_show, found.most_flips) == (False, 0.0)
    easy = power(items, Limit("min_recovery", 0.95), confidence=0.975, alpha=0.025, criteria=8)
    assert easy.can_show
    assert 0.02 < easy.most_flips < 0.10
    assert easy.detected[0.8] is not None
    assert easy.detected[0.95] is not None
    assert 0.05 < easy.detected[0.8] < easy.detected[0.95] < 0.2


def test_failures_are_counted_the_other_way_round() -> None:
    limit = Limit("max_increase", 0.05)
    failures = power(
        as_expected([1] * 300, 0.1), limit, confidence=0.975, alpha=0.025, direction=Direction.LOWER_IS_BETTER
    )
    successes = power(as_expected([1] * 300, 0.9), limit, confidence=0.975, alpha=0.025, direction=HIGHER)
    assert failures == successes


def test_what_power_is_not_known_for_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        power(as_expected([1] * 20, 0.5), Limit("max_value", 0.1), confidence=0.975, alpha=0.025)
