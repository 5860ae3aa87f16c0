"""Progress that history keeps too, so that the dashboard shows a run while another process measures it."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from q36eval.errors import StorageError
from q36eval.history import EventKind, History, RunProgress
from q36eval.probes import Progress

SECONDS_BETWEEN_WRITES = 1.0


def note(history: History, run_id: str, kind: EventKind, message: str) -> None:
    """Write down what happened to a run, if history takes it: on a full disk that is no reason to stop, or to fail."""
    with suppress(StorageError):
        history.add_event(run_id, kind, message)


class Followed(Progress):
    """Tells `progress` all it is told, and history where the run is: at stages, and at most once a second between them.

    What history does not take (a full disk) is no reason to stop: what is measured meets the same disk and says so.
    """

    def __init__(
        self, progress: Progress, history: History, run_id: str, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._progress, self._history, self._run_id = progress, history, run_id
        self._stage, self._done, self._total = "", 0, 0
        self._written = seconds()

    def stage(self, title: str, total: int) -> None:
        """Begin a stage of `total` items."""
        self._progress.stage(title, total)
        self._stage, self._done, self._total = title, 0, total
        self._write()

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""
        self._progress.advance(count)
        self._done += count
        if self._done >= self._total or self._seconds() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write()

    def expect(self, task: str, tokens: int) -> None:
        """So many tokens of a task are ahead in this stage."""
        self._progress.expect(task, tokens)

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """So many of them are done, in so many seconds of the engine's work."""
        self._progress.worked(task, tokens, seconds)

    def dropped(self, task: str, tokens: int) -> None:
        """So many of them need not be done after all."""
        self._progress.dropped(task, tokens)

    def retried(self, count: int, error: str) -> None:
        """So many requests errored, for one with these words, and are asked again."""
        self._progress.retried(count, error)
        several = f"{count} requests errored and are" if count > 1 else "A request errored and is"
        note(self._history, self._run_id, EventKind.RETRY, f"{several} asked again: {error}")

    def _write(self) -> None:
        self._written = self._seconds()
        known = RunProgress(
            run_id=self._run_id, stage=self._stage, done=self._done, total=self._total, at=datetime.now(UTC)
        )
        with suppress(StorageError):
            self._history.set_progress(known)
