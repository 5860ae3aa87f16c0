"""The budget is charged before, never after; a kill forgets no charge; a slow, busy or hostile server is let alone."""

import json
import math
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q36eval.errors import UsageError
from q36eval.history import History
from q36eval.watch.budget import TEMPLATE_TOKENS, Gauge, PutOffError, most_tokens
from q36eval.watch.endpoint_sampling import FEW, _log_prob, coarse_kl
from q36eval.watch.settings import Amounts, BackOff, Budget, Deployment
from q36eval.watch.store import Spent, Store
from tests.q36eval.watch.conftest import Clock, Place
from tests.raising import raises

DAY = "2026-11-20"
BUDGET = Budget(requests_per_day=20, tokens_per_day=1_000, requests_per_round=10, tokens_per_round=600)


def body(prompt: int = 50, answer: int = 50) -> dict[str, Any]:
    return {"prompt": [1] * prompt, "max_tokens": answer}


def used(prompt: int, completion: int) -> bytes:
    return json.dumps({"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}).encode()


def gauge(folder: Path, clock: Clock | None = None, **back_off: Any) -> Gauge:
    made = Gauge(Store(folder), BUDGET, BackOff(**back_off), (clock or Clock(23, 50)).now)
    made.begin((1, 1))
    return made


def test_the_most_that_a_request_costs_is_no_less_than_what_it_can() -> None:
    assert most_tokens(None) == 0
    assert most_tokens(body(7, 5)) == 12
    assert most_tokens({"prompt": "sleva 15 % Kč", "max_tokens": 1}) == len("sleva 15 % Kč".encode()) + 1
    assert most_tokens({"prompt": [[1, 2], [3]], "max_tokens": 1}) == 4
    assert most_tokens({"messages": [{"content": "x" * 100}], "max_tokens": 9}) > 100 + TEMPLATE_TOKENS


@pytest.mark.long
def test_a_request_is_charged_on_the_disk_before_it_is_sent_and_gives_back_what_it_did_not_use(tmp_path: Path) -> None:
    one = gauge(tmp_path)
    one.before(body())
    assert Store(tmp_path).spent(DAY) == Spent(1, 100)  # as another process finds it after a kill
    one.after(200, 0.1, None, used(50, 10))
    one.before(body())
    assert Store(tmp_path).spent(DAY) == Spent(2, 160)
    killed = gauge(tmp_path)
    killed.before(body())
    assert Store(tmp_path).spent(DAY) == Spent(3, 260)


def test_no_request_is_made_that_might_exceed_a_limit_and_none_is_charged_for_it(tmp_path: Path) -> None:
    one = gauge(tmp_path)
    for _ in range(6):
        one.before(body())
    with pytest.raises(PutOffError, match="a round may take 600 tokens"):
        one.before(body())
    assert Store(tmp_path).spent(DAY) == Spent(6, 600)
    one.begin((1, 1))
    for _ in range(4):
        one.before(body())
    with pytest.raises(PutOffError, match="1,000 tokens a day are spent"):
        one.before(body(1, 1))
    with pytest.raises(PutOffError, match="0 tokens left"):
        one.begin((1, 1))


def test_a_new_day_begins_at_midnight_utc_and_gives_nothing_of_the_last_one(tmp_path: Path) -> None:
    clock = Clock(23, 50)
    one = gauge(tmp_path, clock)
    one.before(body())
    one.after(200, 0.1, None, used(50, 1))
    clock.later(minutes=20)
    one.before(body())
    assert (Store(tmp_path).spent(DAY), Store(tmp_path).spent("2026-11-21")) == (Spent(1, 51), Spent(1, 100))


def test_a_server_that_takes_three_times_as_long_as_it_did_is_let_alone(tmp_path: Path) -> None:
    one = gauge(tmp_path, latency_floor_s=0.0)
    for _ in range(3):
        one.begin((1, 1))
        for _ in range(2):
            one.before(body(1, 20))
            one.after(200, 0.2, None, used(1, 19))
        one.measured()
    assert one.baseline_s == pytest.approx(0.01)
    one.begin((1, 1))
    for _ in range(3):  # three slow answers may be chance
        one.before(body(1, 20))
        one.after(200, 0.8, None, used(1, 19))
    one.before(body(1, 20))
    with pytest.raises(PutOffError, match=r"4\.0 times as long") as told:
        one.after(200, 0.8, None, used(1, 19))
    assert told.value.reason == "latency"


FEW_OF_ALL = Amounts(required=1, suspects=0, families=1, kl=1, differentials=0)


# -- what a hostile or broken server, clock or history may do: numbers


def listed(distribution: np.ndarray, label: int) -> dict[int, float]:
    """The likeliest tokens of a position, and the prompt's own."""
    return {token: math.log(distribution[token]) for token in {*map(int, np.argsort(-distribution)[:FEW]), label}}


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


# -- time that it tells or wants


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["inf", "1e300", "99999999"])
def test_no_server_silences_a_watch_for_longer_than_its_deployment_allows(place: Place, wanted: str) -> None:
    deployment = place.deployment(back_off=BackOff(longest_s=1800.0))
    with place.watch(deployment) as watch:
        place.refusing |= {"status": 503, "retry_after": wanted}
        assert watch.round().put_off == "throttled"
        assert watch.backoff_s <= 1800.0
        place.refusing.clear()
        place.clock.later(seconds=1801)
        assert watch.round().put_off is None


@pytest.mark.long
def test_a_clock_that_is_set_back_does_not_let_the_server_alone_for_years(place: Place) -> None:
    with place.watch() as watch:
        place.refusing |= {"status": 429, "retry_after": 60}
        assert watch.round().put_off == "throttled"
        place.refusing.clear()
        place.clock.later(days=-400)
        assert watch.round().put_off == "throttled"
        place.clock.later(hours=1, seconds=1)
        assert watch.round().put_off is None


# -- what is measured, and told


@pytest.mark.long
def test_a_round_that_measured_too_little_is_no_success(place: Place) -> None:
    with place.watch() as watch:
        for _ in range(4):
            watch.once()
            place.clock.later(minutes=15)
        success = watch.newest["success_at"]
        assert success == (place.clock.now() - timedelta(minutes=15)).timestamp()
    little = place.deployment(amounts=FEW_OF_ALL)
    with place.watch(little) as watch:
        assert watch.once().result == "inconclusive"
        assert (watch.endpoint_up, watch.newest["success_at"]) == (True, success)


@pytest.mark.long
def test_receivers_do_not_wait_for_a_history_that_hangs(place: Place) -> None:
    hangs, told = threading.Event(), threading.Event()

    def history() -> History:
        hangs.wait(60)
        raise OSError("gone")

    with place.watch(open_history=history) as watch:
        watch.courier.deliver = lambda: told.set() or 0  # type: ignore[method-assign]
        once = threading.Thread(target=watch.once, daemon=True)
        once.start()
        assert told.wait(60)
        assert once.is_alive()
        hangs.set()
        once.join(60)
        assert not watch.spool.reachable
