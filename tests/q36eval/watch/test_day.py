"""An accelerated day, and the arrays of the simulation against the program's own steps."""

import numpy as np
import pytest

from benchmarks.watch_day import BUDGET, a_day
from benchmarks.watch_simulation import agrees, years
from q36eval.watch.incidents import EventKind
from q36eval.watch.settings import Alarm


def test_the_simulation_takes_the_programs_own_steps() -> None:
    assert agrees(seed=1) < 1e-9
    opened, confirmed, watched = years("at the bound", replicas=20, rounds=200, seed=1)
    assert (np.asarray(opened).shape, confirmed, watched) == ((20,), 0, 4_000.0)


@pytest.mark.slow
@pytest.mark.long
def test_a_model_exchanged_at_a_random_time_is_alarmed_within_three_rounds_and_within_the_budget() -> None:
    day = a_day("int2-experts", seed=7, rounds=30, alarm=Alarm(calibration_rounds=8, anchors=12))
    before = [event.kind for outcome in day.outcomes[: day.damaged_in] for event in outcome.events]
    assert before == [EventKind.CALIBRATED]
    assert day.opened_in is not None
    assert day.confirmed_in is not None
    assert day.damaged_in <= day.opened_in <= day.damaged_in + 3
    # confirmed on rounds an interval apart; eight rounds of calibration bound little, so that each weighs little
    assert day.opened_in < day.confirmed_in <= day.damaged_in + 8
    assert day.outcomes[-1].result == "fail"
    assert day.counted[0] == day.charged[0] <= BUDGET.requests_per_day
    assert 0 < day.counted[1] <= day.charged[1] <= BUDGET.tokens_per_day
    assert day.kept_runs >= 30
