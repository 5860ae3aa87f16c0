"""How long it will still take."""

import pytest

from q36eval.run.progress import Estimate, duration


def test_a_task_is_timed_by_its_own_items_and_by_how_many_workers_there_were() -> None:
    now = [0.0]
    estimate = Estimate(lambda: now[0])
    estimate.expect("read", 1000)
    estimate.expect("written", 100)
    assert estimate.remaining_seconds("read") is None, "nothing is known before anything is done"
    now[0] = 10.0
    estimate.worked("read", 500, 20.0)  # two workers, ten seconds
    assert estimate.remaining_seconds("read") == pytest.approx(10.0)
    assert estimate.remaining_seconds("written") is None, "what reading costs says nothing about writing"
    assert estimate.sentence() == "read ≈ 10 s · written not started"
    estimate.dropped("read", 250)
    assert estimate.remaining_seconds("read") == pytest.approx(5.0)
    estimate.worked("read", 250, 10.0)
    assert estimate.remaining_seconds("read") == 0.0
    assert estimate.unfinished() == ["written"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(1, "under 5 s"), (23, "25 s"), (200, "3 min"), (7300, "2 h 2 min"), (5399, "1 h 30 min")]
)
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert duration(seconds) == words
