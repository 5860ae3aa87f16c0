"""An accelerated day: a real model over HTTP is exchanged at a random time, and only the clock is not real."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import Engine
from q36eval.history import History
from q36eval.watch.incidents import EventKind
from q36eval.watch.service import Setting, Watch
from q36eval.watch.settings import Alarm, Amounts, Budget
from tests.branches import folder_of
from tests.q36eval.openai.server import opened

BUDGET = Budget(requests_per_day=2_400, tokens_per_day=700_000, requests_per_round=40, tokens_per_round=20_000)
AMOUNTS = Amounts(required=4, suspects=2, families=4, kl=6, differentials=1)
ALARM = Alarm(calibration_rounds=8, anchors=12)
ROUNDS = 30


@pytest.mark.long
def test_a_model_exchanged_at_a_random_time_is_alarmed_within_three_rounds_and_within_the_budget(
    good: Engine, place: Any, clock: Any, setting: Callable[..., Setting], tmp_path: Path
) -> None:
    damaged_in = random.Random(7).randrange(ALARM.calibration_rounds + 1, ROUNDS - 6)
    first: dict[EventKind, int] = {}
    watched = setting(place.deployment(amounts=AMOUNTS, budget=BUDGET, alarm=ALARM))
    day = f"{clock.now():%Y-%m-%d}"
    with Watch(watched, lambda _: None, clock) as watch:
        for number in range(ROUNDS):
            if number == damaged_in:
                assert list(first) == [EventKind.CALIBRATED]
                place.exchange(opened(folder_of("int2-experts")))
            outcome = watch.wake()
            watch.serve_history()
            for event in outcome.events:
                first.setdefault(event.kind, number)
            clock.later(minutes=15)
        spent = watch.store.spent(day)
    assert f"{clock.now():%Y-%m-%d}" == day, "one day's budget holds all rounds"
    assert damaged_in <= first[EventKind.OPENED] <= damaged_in + 3
    # confirmed on rounds an interval apart; eight rounds of calibration bound little, so that each weighs little
    assert first[EventKind.OPENED] < first[EventKind.CONFIRMED] <= damaged_in + 8
    assert outcome.result == "fail"
    assert place.seen["requests"] == spent.requests <= BUDGET.requests_per_day
    assert 0 < place.seen["tokens"] <= spent.tokens <= BUDGET.tokens_per_day
    assert len(History.open(tmp_path / "history.sqlite").list_runs()) >= ROUNDS
