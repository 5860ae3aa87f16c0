"""The budget is charged before, never after; a kill forgets no charge; a slow or busy server is let alone."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from q36eval.watch.budget import TEMPLATE_TOKENS, Gauge, PutOffError, most_tokens
from q36eval.watch.settings import BackOff, Budget
from q36eval.watch.store import Spent, Store

DAY = "2026-11-20"
BUDGET = Budget(requests_per_day=20, tokens_per_day=1_000, requests_per_round=10, tokens_per_round=600)


class At:
    time = datetime(2026, 11, 20, 23, 50, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


def body(prompt: int = 50, answer: int = 50) -> dict[str, Any]:
    return {"prompt": [1] * prompt, "max_tokens": answer}


def used(prompt: int, completion: int) -> bytes:
    return json.dumps({"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}).encode()


def gauge(folder: Path, at: At | None = None, **back_off: Any) -> Gauge:
    made = Gauge(Store(folder), BUDGET, BackOff(**back_off), (at or At()).now)
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
    at = At()
    one = gauge(tmp_path, at)
    one.before(body())
    one.after(200, 0.1, None, used(50, 1))
    at.time += timedelta(minutes=20)
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
