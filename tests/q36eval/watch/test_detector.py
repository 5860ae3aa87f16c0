"""The bets hold what they promise: exactly, by summing over everything that can happen."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from q36eval.watch.detector import (
    NOTHING,
    ONE,
    SHARES,
    detected,
    log_mean,
    mixed_bets,
    quiet_bets,
    quiet_share,
    recovery_bets,
    share_bets,
    tried,
)


def chance(items: tuple[bool, ...], rate: float) -> float:
    return math.prod(rate if item else 1.0 - rate for item in items)


@pytest.mark.parametrize("quiet", [0.02, 0.3])
@pytest.mark.parametrize("share", range(len(SHARES)))
def test_a_round_has_expectation_one_at_the_quiet_rate_and_less_below(quiet: float, share: int) -> None:
    for rate, most in ((quiet, 1.0), (quiet / 3, 1.0)):
        mean = sum(chance(i, rate) * math.exp(quiet_bets(i, quiet)[share]) for i in product([False, True], repeat=6))
        assert mean == pytest.approx(1.0) if rate == quiet else mean < most


@pytest.mark.parametrize("share", range(len(SHARES)))
def test_a_round_is_one_bet_whatever_its_items_have_in_common(share: int) -> None:
    """Lost all together or not at all, at the quiet rate: a bet on the share has expectation 1, bets by item more."""
    quiet = 0.02
    for lost in (1, 8):  # of 8 items, so often that the mean share is the quiet one
        rate = quiet * 8 / lost
        mean = rate * math.exp(share_bets(lost / 8, quiet)[share]) + (1 - rate) * math.exp(
            share_bets(0.0, quiet)[share]
        )
        assert mean == pytest.approx(1.0)
    by_item = quiet * math.exp(quiet_bets([True] * 8, quiet)[share])
    assert by_item > (1.0 if SHARES[share] > 0.05 else 0.1)


@pytest.mark.parametrize("share", range(len(SHARES)))
def test_items_of_different_quiet_shares_and_rounds_against_recovery_have_expectation_one(share: int) -> None:
    quiet = (0.02, 0.3, 0.6)
    mean = 0.0
    for items in product([False, True], repeat=3):
        chances = (rate if lost else 1.0 - rate for lost, rate in zip(items, quiet, strict=True))
        mean += math.prod(chances) * math.exp(mixed_bets(list(zip(items, quiet, strict=True)))[share])
    assert mean == pytest.approx(1.0)
    # against recovery, at the damaged rate
    mean = sum(chance(i, 0.3) * math.exp(recovery_bets(i, 0.3)[share]) for i in product([False, True], repeat=5))
    assert mean == pytest.approx(1.0)


def test_a_detector_grows_by_one_a_round_on_average_whatever_came_before() -> None:
    """So that it reaches A after A rounds or more on average: its mean less the rounds never rises."""
    quiet, rounds = 0.2, 4
    total = 0.0
    for items in product([False, True], repeat=2 * rounds):
        logs = NOTHING
        for at in range(0, len(items), 2):
            logs = detected(logs, quiet_bets(items[at : at + 2], quiet))
        total += chance(items, quiet) * math.exp(log_mean(logs))
    assert total == pytest.approx(rounds)


@given(st.lists(st.booleans(), max_size=30), st.floats(0.01, 0.6))
def test_a_trial_is_the_same_in_one_piece_and_item_by_item(items: list[bool], quiet: float) -> None:
    logs = ONE
    for item in items:
        logs = tried(logs, quiet_bets([item], quiet))
    assert logs == pytest.approx(quiet_bets(items, quiet))


def test_a_bound_covers_the_rate_as_often_as_it_says() -> None:
    """Summed over all counts of 40 items: exact, by binomial chances."""
    for rate in (0.01, 0.05, 0.2):
        covered = sum(
            math.comb(40, lost) * rate**lost * (1 - rate) ** (40 - lost)
            for lost in range(41)
            if quiet_share(lost, 40, 1e-9) >= rate
        )
        assert covered >= 0.999
    assert (quiet_share(0, 0, 0.02), quiet_share(3, 3, 0.02), quiet_share(0, 10**6, 0.02)) == (1.0, 1.0, 0.02)
