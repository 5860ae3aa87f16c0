"""The charts against theory and slow references, and on what has no spread."""

import math

import numpy as np
import pytest
from scipy import stats

from q36eval.drift.charts import (
    CUSUM_ALLOWANCE,
    EWMA_WEIGHT,
    LEAST_SPREAD,
    LOOK_BACK,
    RESIDUAL_CAP,
    Spread,
    control_charts,
    limits_for,
)

LIMITS = limits_for(1)


def charts(*series: list[float], least: float = LEAST_SPREAD, limits=LIMITS):
    effects = np.array(series).T
    return control_charts(effects, np.full(effects.shape, least), limits)


def test_residuals_are_independent_standard_normal_from_the_third_run_on() -> None:
    """Whatever the level and the spread; 3,000 series, so that a standard error of a mean is 0.018."""
    effects = 7.0 + 0.2 * np.random.default_rng(1).standard_normal((12, 3_000))
    found = control_charts(effects, np.full(effects.shape, 1e-9), LIMITS).residual
    assert np.isnan(found[:2]).all()
    assert np.abs(found[2:].mean(axis=1)).max() < 4 * 0.018
    assert np.abs(found[2:].std(axis=1) - 1).max() < 4 * 0.013
    assert np.abs(np.corrcoef(found[2:]) - np.eye(10)).max() < 5 * 0.018


def test_rows_are_what_their_formulas_say() -> None:
    x = np.random.default_rng(2).standard_normal(9).tolist()
    found = charts(x, least=1e-9)
    ewma = high = low = 0.0
    for run in range(2, 9):
        before = np.array(x[:run])
        t = (x[run] - before.mean()) / (before.std(ddof=1) * math.sqrt(1 + 1 / run))
        residual = stats.norm.ppf(stats.t.cdf(t, run - 1))
        counted = min(max(residual, -RESIDUAL_CAP), RESIDUAL_CAP)
        ewma = (1 - EWMA_WEIGHT) * ewma + EWMA_WEIGHT * counted
        high, low = max(0.0, high + counted - CUSUM_ALLOWANCE), max(0.0, low - counted - CUSUM_ALLOWANCE)
        rows = (found.residual, found.ewma, found.cusum_high, found.cusum_low)
        assert [row[run, 0] for row in rows] == pytest.approx([residual, ewma, high, low], abs=1e-9)


def test_the_greatest_change_after_every_run_is_that_of_every_split_in_reach_of_it() -> None:
    """Run by run and split by split, in its own spread and in the least; also beyond as many runs as are looked at."""
    effects = np.random.default_rng(7).standard_normal((LOOK_BACK + 12, 2))
    effects[40:, 1] += 2.0
    least = np.linspace(0.2, 0.6, len(effects))[:, None] * np.ones(2)
    found = control_charts(effects, least, LIMITS)
    for end in (4, 5, 17, 45, LOOK_BACK + 1, LOOK_BACK + 2, LOOK_BACK + 12):
        for column in range(2):
            x, floor = effects[:end, column], math.sqrt(np.mean(least[:end, column] ** 2))
            splits = range(max(2, end - LOOK_BACK), end - 1)
            sizes = [_change(x[:split], x[split:], floor, end - 2) for split in splits]
            best = int(np.argmax(np.abs(sizes)))
            assert found.shift[end - 1, column] == pytest.approx(sizes[best], rel=1e-9)
            assert found.split[end - 1, column] == splits[best]


def _change(before: np.ndarray, after: np.ndarray, floor: float, freedom: int) -> float:
    rises = after.mean() > before.mean()
    sign = 1 if rises else -1
    change = np.sort(sign * after)[:-1].mean() - np.sort(sign * before)[1:].mean()  # each without its loudest run
    if change < floor:
        return 0.0
    error = math.sqrt(1 / (len(before) - 1) + 1 / (len(after) - 1))
    squares = before.var() * len(before) + after.var() * len(after)
    own = stats.norm.isf(stats.t.sf(change / math.sqrt(squares / freedom) / error, freedom))
    return float(sign * min(own, change / floor / error))


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_what_repeats_to_the_last_bit_neither_divides_by_zero_nor_alarms(noise: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = charts([0.3 + noise * (run % 3) for run in range(40)], [0.0] * 40)
    assert not found.signal.any()
    assert np.abs(found.residual[2:]).max() < 1e-6


def test_a_move_of_what_repeated_is_found_in_three_runs_and_traced_to_its_first() -> None:
    found = charts([0.0] * 5 + [2.0] * 3)
    assert found.signal[:, 0].tolist() == [False] * 7 + [True]
    assert found.split[7, 0] == 5


def test_one_run_far_off_is_no_drift_and_a_small_move_never_is() -> None:
    outlier = [*([0.0, 0.3, -0.3] * 5), 60.0, *([0.0, 0.3, -0.3] * 5)]
    small = [0.0] * 70 + [0.9 * LEAST_SPREAD] * 60
    assert not charts(outlier).signal.any()
    found = charts(small)
    assert np.nanmax(found.cusum_high) > LIMITS.cusum  # so long a stretch, each residual under one least spread
    assert not found.signal.any()


def test_an_ended_series_says_nothing_more() -> None:
    found = charts([0.0] * 9, [0.0, 0.1, 0.2, *[math.nan] * 6])
    assert np.isfinite(found.residual[2, 1])
    assert np.isnan(found.residual[3:, 1]).all()
    assert not found.signal.any()


def test_spread_of_earlier_stretches_counts() -> None:
    effects = np.array([[0.0], [4.0]])
    alone = control_charts(effects, np.ones((2, 1)), LIMITS)
    after = control_charts(effects, np.ones((2, 1)), LIMITS, Spread(np.array([20.0]), np.array([20.0])))
    assert np.isnan(alone.residual[1, 0])
    assert after.residual[1, 0] == pytest.approx(stats.norm.isf(stats.t.sf(4 / math.sqrt(2), 20)))


def test_limits_grow_with_the_metrics_and_match_published_run_lengths() -> None:
    """Lucas & Saccucci (1990), table 3: weight 0.2 and a limit of 2.86 give 370. Siegmund's run length of a CUSUM with
    k = 0.5 and h = 5 is 466 two-sided (Hawkins & Olwell 1998: 465)."""
    from q36eval.drift.charts import _cusum_limit, _ewma_limit

    assert _ewma_limit(370) == pytest.approx(2.86, abs=0.01)
    assert _cusum_limit(465) == pytest.approx(5.0, abs=0.01)
    few, many = limits_for(1), limits_for(20)
    assert (few.ewma, few.cusum, few.shift) < (many.ewma, many.cusum, many.shift)
    assert many.run_length == 20 * few.run_length


@pytest.mark.parametrize("heavy", [False, True])
def test_stable_histories_alarm_no_more_often_than_stated(heavy: bool) -> None:
    """600 histories of 60 runs; stated are 5.8 %, and 600 draws of that exceed 8.7 % once in 500."""
    rng = np.random.default_rng(3)
    shape = (60, 600)
    effects = rng.standard_t(3, shape) / math.sqrt(3) if heavy else rng.standard_normal(shape)
    found = control_charts(effects, np.full(shape, LEAST_SPREAD), LIMITS)
    assert found.signal.any(axis=0).mean() < 0.087
