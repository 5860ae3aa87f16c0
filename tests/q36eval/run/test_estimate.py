"""How long it will still take."""

import pytest

from q36eval.run.progress import Estimate
from q36eval.run.rounds import REPEATED


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
    assert estimate.sentence() == "read ≈ 10 s · then written"
    estimate.dropped("read", 250)
    assert estimate.remaining_seconds("read") == pytest.approx(5.0)
    estimate.worked("read", 250, 10.0)
    assert estimate.remaining_seconds("read") == 0.0
    assert estimate.unfinished() == ["written"]


def test_after_a_resume_known_rows_of_the_first_batch_do_not_slow_the_estimate_down() -> None:
    """Of eight rows seven were known: eight seconds of waiting for one row, and every other row takes one."""
    now = [0.0]
    estimate = Estimate(lambda: now[0])
    estimate.expect("read", 100)
    now[0] = 8.0
    estimate.expect(REPEATED, 0)
    estimate.worked(REPEATED, 0, 7.0)
    estimate.worked("read", 1, 1.0)
    assert estimate.sentence() == "read ≈ 2 min"
    assert estimate.remaining_seconds("read") == pytest.approx(99.0)
    assert estimate.unfinished() == ["read"]
