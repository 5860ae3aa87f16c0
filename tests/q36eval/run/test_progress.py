"""A run at work says in history where it is."""

from pathlib import Path

from q36eval.engines.base import Scored, ScoreRequest
from q36eval.engines.retrying import with_retry
from q36eval.history import EventKind, History
from q36eval.probes import Progress
from q36eval.run.progress import Followed


class Console(Progress):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def stage(self, title: str, total: int) -> None:
        self.told.append((title, total))

    def advance(self, count: int = 1) -> None:
        self.told.append(count)


def test_history_hears_of_stages_and_at_most_once_a_second_between_them(tmp_path: Path) -> None:
    history, seconds, console = History.open(tmp_path / "h.sqlite"), [0.0], Console()
    run = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    following = Followed(console, history, run.id, lambda: seconds[0])

    def known() -> tuple[str, int, int]:
        found = history.progress(run.id)
        assert found is not None
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


def test_what_is_asked_again_is_an_event(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h.sqlite")
    run = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    following = Followed(Console(), history, run.id)

    def times_out(requests):
        return (Scored(request, None, error="timeout") for request in requests)

    list(with_retry(times_out, [ScoreRequest("one", (1,)), ScoreRequest("two", (1,))], following.retried))
    assert [(event.kind, event.message) for event in history.events(run.id)] == [
        (EventKind.RETRY, "2 requests errored and are requested again: timeout")
    ] * 2
