"""What a hostile or broken server, clock or history may do to a watch: it says so, and goes on."""

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from q36eval.errors import UsageError
from q36eval.history import History
from q36eval.watch.endpoint_sampling import FEW, _log_prob, coarse_kl
from q36eval.watch.pages import health
from q36eval.watch.service import Setting, Watch
from q36eval.watch.settings import Amounts, BackOff, Deployment
from tests.q36eval.watch.conftest import Clock, Place
from tests.q36eval.watch.test_budget import body, gauge, used
from tests.raising import raises

FEW_OF_ALL = Amounts(required=1, suspects=0, families=1, kl=1, differentials=0)
Made = Callable[..., Setting]


# -- numbers


def listed(distribution: np.ndarray, label: int) -> dict[int, float]:
    """The likeliest tokens of a position, and the prompt's own."""
    likeliest = {*map(int, np.argsort(-distribution)[:FEW]), label}
    return {token: math.log(distribution[token]) for token in likeliest}


def test_the_divergence_of_two_lists_is_a_lower_bound_and_sees_lists_that_share_nothing() -> None:
    rng = np.random.default_rng(24)
    for _ in range(3000):
        p = rng.dirichlet(np.full(40, rng.choice([0.02, 0.1, 0.5]))) + 1e-9
        q = rng.dirichlet(np.full(40, 0.1)) + 1e-9 if rng.random() < 0.5 else p * np.exp(rng.standard_normal(40))
        p, q = p / p.sum(), q / q.sum()
        label = int(rng.integers(40))
        assert coarse_kl(listed(p, label), listed(q, label)) <= float(np.sum(p * np.log(p / q))) + 1e-6
    assert coarse_kl({1: -0.01, 2: -5.0}, {3: -0.01, 4: -5.0}) > 5.0
    same = {1: -0.2, 2: -2.0, 3: -3.0}
    assert coarse_kl(same, same) == 0.0


@pytest.mark.parametrize("given", [math.nan, math.inf, -math.inf, 1000, 0.5, "nan", "-1", None, True])
def test_what_is_no_log_probability_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="is no log-probability"):
        _log_prob(given)


def test_a_server_is_not_believed_that_it_read_less_than_it_was_sent_nor_more_than_can_be(tmp_path: Path) -> None:
    for told, charged in ((0, 50), (90, 90), (10**9, 100 + 2048)):
        charging = gauge(tmp_path / str(told))
        charging.before(body(prompt=50, answer=50))
        charging.after(200, 0.1, None, used(told, 0))
        charging.end()
        assert charging.tokens == charged


def test_a_day_that_holds_no_round_is_refused() -> None:
    with raises(UsageError, "deployment-invalid", "30 requests", "take 60"):
        Deployment.named("prod", branch="bf16", budget={"requests_per_day": 30})


# -- time


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["inf", "1e300", "99999999"])
def test_no_server_silences_a_watch_for_longer_than_its_deployment_allows(
    place: Place, clock: Clock, setting: Made, wanted: str
) -> None:
    deployment = place.deployment(back_off=BackOff(longest_s=1800.0))
    with Watch(setting(deployment), lambda _: None, clock.now) as watch:
        place.refusing |= {"status": 503, "retry_after": wanted}
        assert watch.round().put_off == "throttled"
        assert watch.backoff_s <= 1800.0
        place.refusing.clear()
        clock.later(seconds=1801)
        assert watch.round().put_off is None


@pytest.mark.long
def test_a_clock_that_is_set_back_does_not_let_the_server_alone_for_years(
    place: Place, clock: Clock, setting: Made
) -> None:
    with Watch(setting(place.deployment()), lambda _: None, clock.now) as watch:
        place.refusing |= {"status": 429, "retry_after": 60}
        assert watch.round().put_off == "throttled"
        place.refusing.clear()
        clock.later(days=-400)
        assert watch.round().put_off == "throttled"
        clock.later(hours=1, seconds=1)
        assert watch.round().put_off is None


def test_rounds_that_do_not_end_are_no_health(place: Place, clock: Clock, setting: Made) -> None:
    with Watch(setting(place.deployment(every="10s")), lambda _: None, clock.now) as watch:
        assert health(watch) == []
        watch.rounded -= 3600
        assert len(health(watch)) == 1


# -- what is measured, and told


@pytest.mark.long
def test_a_round_that_measured_too_little_is_no_success(place: Place, clock: Clock, setting: Made) -> None:
    with Watch(setting(place.deployment()), lambda _: None, clock.now) as watch:
        for _ in range(4):
            watch.once()
            clock.later(minutes=15)
        success = watch.newest["success_at"]
        assert success == (clock.now() - timedelta(minutes=15)).timestamp()
    little = place.deployment(amounts=FEW_OF_ALL)
    with Watch(setting(little), lambda _: None, clock.now) as watch:
        assert watch.once().result == "inconclusive"
        assert (watch.endpoint_up, watch.newest["success_at"]) == (True, success)


@pytest.mark.long
def test_receivers_do_not_wait_for_a_history_that_hangs(place: Place, clock: Clock, setting: Made) -> None:
    hangs, told = threading.Event(), threading.Event()

    def history() -> History:
        hangs.wait(60)
        raise OSError("gone")

    with Watch(setting(place.deployment(), open_history=history), lambda _: None, clock.now) as watch:
        watch.courier.deliver = lambda: told.set() or 0  # type: ignore[method-assign]
        once = threading.Thread(target=watch.once, daemon=True)
        once.start()
        assert told.wait(60)
        assert once.is_alive()
        hangs.set()
        once.join(60)
        assert not watch.spool.reachable
