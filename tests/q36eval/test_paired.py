"""Recovery and the effective length against other ways to them."""

import math

import numpy as np
import pytest

from q36eval.paired_figures import effective_length, recovery
from q36eval.records import Clusters, Direction, Schedule
from q36eval.stats import margin_test
from tests.q36eval.stats.evidence import Margin, items


def test_recovery_and_its_bounds_are_those_the_gate_judges_by() -> None:
    rng = np.random.default_rng(4)
    reference = rng.random(400) < 0.8
    evidence = items(reference & (rng.random(400) > 0.04), reference)
    value, interval = recovery(evidence)
    assert value == pytest.approx(sum(evidence.branch) / reference.sum())
    for bound, inside in ((interval.lower, -1e-6), (interval.upper, 1e-6)):
        outer, inner = (
            margin_test(evidence, "paired_mean", Margin("min_recovery", at), direction=Direction.HIGHER_IS_BETTER)
            for at in (bound + inside, bound - inside)
        )
        p_outer, p_inner = (outer.p_pass, inner.p_pass) if inside < 0 else (outer.p_fail, inner.p_fail)
        assert p_outer <= 0.025 <= p_inner


def test_a_recovery_is_as_sharp_with_a_schedule_as_without() -> None:
    """No margin is known to plan bets for, so none of the stake may wait for planned ones."""
    rng = np.random.default_rng(4)
    reference = rng.random(400) < 0.8
    evidence = items(reference & (rng.random(400) > 0.04), reference)
    blocks = Schedule(largest=1, blocks=tuple(i // 50 for i in range(400)))
    bounds, scheduled = (recovery(each)[1] for each in (evidence, evidence.model_copy(update={"schedule": blocks})))
    assert (scheduled.lower, scheduled.upper) == pytest.approx((bounds.lower, bounds.upper), abs=1e-9)


def test_recovery_of_what_cannot_be_judged_has_no_bounds() -> None:
    nothing = recovery(Clusters(units=(), branch=(), reference=(), errored=(), bounds=(0.0, 1.0)))
    wrong = recovery(items(np.ones(20), np.zeros(20)))
    for value, interval in (nothing, wrong):
        assert math.isnan(value)
        assert math.isnan(interval.lower)
        assert interval.method.startswith("none: ")
    with pytest.raises(ValueError, match="reference"):
        recovery(Clusters(units=(1,), branch=(1.0,), errored=(0,), bounds=(0.0, 1.0)))


GOOD, SEEN, BAD, NONE = (1.0, 0.98), (0.99, 0.95), (0.9, 0.85), (math.nan, math.nan)


@pytest.mark.parametrize(
    ("lengths", "by_value", "by_lower_bound", "whole"),
    [
        ({"t4": GOOD, "t8": GOOD, "t16": GOOD}, 16, 16, True),
        ({"t16": GOOD, "t4": GOOD, "t8": SEEN}, 16, 4, True),
        ({"t4": BAD, "t8": GOOD}, None, None, False),
        ({"t4": GOOD, "t8": BAD, "t16": GOOD}, 4, 4, False),
        ({"t4": GOOD, "t8": NONE, "t16": GOOD}, 4, 4, False),
        ({"t4": GOOD, "t8": GOOD, "t16": NONE}, 8, 8, False),
        ({"t4": NONE, "t8": NONE}, None, None, False),
        ({}, None, None, False),
        ({"t4": (0.97, 0.97)}, 4, 4, True),
    ],
)
def test_a_length_counts_only_where_every_shorter_one_does(
    lengths: dict[str, tuple[float, float]], by_value: int | None, by_lower_bound: int | None, whole: bool
) -> None:
    found = effective_length({int(name[1:]): pair for name, pair in lengths.items()}, 0.97)
    assert (found.by_value, found.by_lower_bound, found.is_whole) == (by_value, by_lower_bound, whole)
    assert len(found.measured) + len(found.not_measured) == len(lengths)
