"""A run at work: where it is, as history keeps it, and how long it will still take."""

from pathlib import Path

import pytest

from q36eval.engines.base import Scored, ScoreRequest
from q36eval.engines.retries import with_retry
from q36eval.history import EventKind, History
from q36eval.probes import Progress
from q36eval.run.progress import Estimate, Followed
from q36eval.run.rounds import REPEATED


class Console(Progress):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def stage(self, title: str, total: int) -> None:
        self.told.append((title, total))

    def advance(self, count: int = 1) -> None:
        self.told.append(count)


def test_history_hears_of_stages_at_most_once_a_second_and_of_what_is_asked_again(tmp_path: Path) -> None:
    history, seconds, console = History.open(tmp_path / "h.sqlite"), [0.0], Console()
    run = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    following = Followed(console, history, run.id, lambda: seconds[0])

    def known() -> tuple[str, int, int]:
        found = history.progress(run.id)
        return found.stage, found.done, found.total

    following.stage("measuring the branch", 9)
    assert known() == ("measuring the branch", 0, 9)
    following.advance(2)
    assert known() == ("measuring the branch", 0, 9)
    seconds[0] = 1.0
    following.advance()
    assert known() == ("measuring the branch", 3, 9)
    following.advance(6)
    assert known() == ("measuring the branch", 9, 9)
    assert console.told == [("measuring the branch", 9), 2, 1, 6]

    def times_out(requests):
        return (Scored(request, None, error="timeout") for request in requests)

    list(with_retry(times_out, [ScoreRequest("one", (1,)), ScoreRequest("two", (1,))], following.retried))
    assert [(event.kind, event.message) for event in history.events(run.id)] == [
        (EventKind.RETRY, "2 requests errored and are requested again: timeout")
    ] * 2


def test_a_task_is_timed_by_its_own_items_and_its_workers_also_after_a_resume() -> None:
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
    # Of eight rows seven were known: eight seconds of waiting for one row, and every other row takes one.
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


def test_history_keeps_the_terminals_estimate_and_none_before_there_is_one(tmp_path: Path) -> None:
    now, history = [0.0], History.open(tmp_path / "h.sqlite")
    run = history.start_run(family="f", branch="b", identity=None, reference_identity=None)
    following = Followed(Progress(), history, run.id, lambda: now[0])

    def kept(seconds: float, done: int) -> str:
        now[0] += seconds
        following.advance(done)
        known = history.progress(run.id)
        return "" if known is None else known.remaining

    following.stage("capturing the reference", 100)
    assert (kept(2, 4), kept(8, 6)) == ("", "≈ 2 min")
    following.stage("measuring the branch", 100)
    following.expect("canaries", 1000)
    assert kept(2, 50) == "", "items of a stage cost what they cost"
    following.worked("canaries", 500, 10.0)
    assert kept(8, 1) == "canaries ≈ 10 s"
