"""The interval of one rate, against scipy's, and what it makes of errored items and of none."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from q36eval.stats import proportion_interval


@pytest.mark.parametrize(("count", "n"), [(0, 200), (1, 200), (7, 50), (49, 50), (50, 50), (0, 1)])
def test_it_is_clopper_and_pearsons(count: int, n: int) -> None:
    for level in (0.8, 0.95):
        found, expected = proportion_interval(count, n, level), binomtest(count, n).proportion_ci(level, "exact")
        assert (found.lower, found.upper) == (pytest.approx(expected.low), pytest.approx(expected.high))
        assert (found.level, found.method) == (level, "Clopper-Pearson")


def test_errored_items_could_have_been_either_and_nothing_scored_has_no_rate() -> None:
    found = proportion_interval(3, 98, errored=2)
    assert found.lower == proportion_interval(3, 100).lower
    assert found.upper == proportion_interval(5, 100).upper
    nothing = proportion_interval(0, 0, errored=4)
    assert math.isnan(nothing.lower)
    assert math.isnan(nothing.upper)
    assert nothing.method == "none: no item was scored"
    for count, n, errored in ((3, 2, 0), (-1, 2, 0), (1, 2, -1)):
        with pytest.raises(ValueError, match="is no proportion"):
            proportion_interval(count, n, errored=errored)


def test_strata_of_other_rates_are_covered_too() -> None:
    rng = np.random.default_rng(3)
    for rates in ([0.0, 0.0, 0.0, 0.2], [0.01, 0.02, 0.05, 0.12], [0.05] * 4):
        counts = sum(rng.binomial(50, rate, 20_000) for rate in rates)
        bounds = {count: proportion_interval(int(count), 200) for count in np.unique(counts)}
        missed = np.array([[bounds[c].lower > 0.05, bounds[c].upper < 0.05] for c in counts]).mean(axis=0)
        assert missed.max() <= 0.025 + 3 * (0.025 / 20_000) ** 0.5
