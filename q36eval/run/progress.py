"""Progress of a run: its record in history for other processes, and its remaining time."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from q36eval.errors import StorageError
from q36eval.history import EventKind, History, RunProgress
from q36eval.probes import Progress
from q36eval.reports.text import duration

SECONDS_BETWEEN_WRITES = 1.0


def note(history: History, run_id: str, kind: EventKind, message: str) -> None:
    """Record an event of a run, if history accepts it: a full disk here is not a reason to stop or fail."""
    with suppress(StorageError):
        history.add_event(run_id, kind, message)


class Followed(Progress):
    """Passes everything on to `progress`, and writes the run's position to history: at stages, and every second.

    A failed write (a full disk) is not a reason to stop: the measurements meet the same disk and report it.
    """

    def __init__(
        self, progress: Progress, history: History, run_id: str, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._progress, self._history, self._run_id = progress, history, run_id
        self._stage, self._done, self._total = "", 0, 0
        self._estimate = Estimate(seconds)
        self._written = seconds()

    def stage(self, title: str, total: int) -> None:
        """Begin a stage of `total` items."""
        self._progress.stage(title, total)
        self._stage, self._done, self._total = title, 0, total
        self._estimate = Estimate(self._seconds, total)
        self._write()

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""
        self._progress.advance(count)
        self._done += count
        self._estimate.advance(count)
        if self._done >= self._total or self._seconds() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write()

    def expect(self, task: str, tokens: int) -> None:
        """That many tokens of a task are expected in this stage."""
        self._progress.expect(task, tokens)
        self._estimate.expect(task, tokens)

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """That many of them are done, in that many seconds of the engine's work."""
        self._progress.worked(task, tokens, seconds)
        self._estimate.worked(task, tokens, seconds)

    def dropped(self, task: str, tokens: int) -> None:
        """That many of them no longer need to be done."""
        self._progress.dropped(task, tokens)
        self._estimate.dropped(task, tokens)

    def within(self, what: str, done: int, total: int) -> None:
        """Progress of a step that all items wait for."""
        self._progress.within(what, done, total)

    def note(self, sentence: str) -> None:
        """A note for a person on how the work is done."""
        self._progress.note(sentence)

    def retried(self, count: int, error: str) -> None:
        """`count` requests errored, one of them with this message, and are requested again."""
        self._progress.retried(count, error)
        several = f"{count} requests errored and are" if count > 1 else "A request errored and is"
        note(self._history, self._run_id, EventKind.RETRY, f"{several} requested again: {error}")

    def _write(self) -> None:
        self._written = self._seconds()
        known = RunProgress(
            run_id=self._run_id,
            stage=self._stage,
            done=self._done,
            total=self._total,
            remaining=self._estimate.sentence(),
            at=datetime.now(UTC),
        )
        with suppress(StorageError):
            self._history.set_progress(known)


@dataclass
class _Task:
    tokens: int
    done: int = 0
    busy_seconds: float = 0.0

    @property
    def remaining(self) -> int:
        return self.tokens - self.done


LEAST_DONE = 0.05
"""The share of a stage's items below which their pace predicts nothing."""


class Estimate:
    """Remaining seconds of a stage by task, for both the terminal and history.

    A task's own engine seconds per token so far, times its remaining tokens, divided by the seconds of engine work per
    second of waiting (workers are concurrent). A task without finished tokens has no estimate: its tokens may cost
    anything, and generated ones cost many times those that are read. A stage without tasks is estimated by its items.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, total: int = 0) -> None:
        self._clock, self._begun = clock, clock()
        self._done, self._total = 0, total
        self._tasks: dict[str, _Task] = {}

    def advance(self, count: int = 1) -> None:
        """That many items of the stage are done."""
        self._done += count

    def expect(self, task: str, tokens: int) -> None:
        """That many more tokens are expected."""
        self._tasks.setdefault(task, _Task(0)).tokens += tokens

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """That many tokens are done, in that many seconds of the engine's work."""
        self._tasks[task].done += tokens
        self._tasks[task].busy_seconds += seconds

    def dropped(self, task: str, tokens: int) -> None:
        """That many tokens no longer need work."""
        self._tasks[task].tokens -= tokens

    def unfinished(self) -> list[str]:
        """Tasks with remaining tokens, in the order of their announcement."""
        return [name for name, task in self._tasks.items() if task.remaining > 0]

    def remaining_seconds(self, task: str) -> float | None:
        """Seconds until that task would be done if worked on alone; None before any of it is done."""
        own = self._tasks[task]
        pace = self._seconds_per_token(own)
        return 0.0 if own.remaining == 0 else None if pace is None else pace * own.remaining

    def _seconds_per_token(self, task: _Task) -> float | None:
        elapsed = self._clock() - self._begun
        busy = sum(each.busy_seconds for each in self._tasks.values())
        if task.done == 0 or busy <= 0 or elapsed <= 0:
            return None
        return task.busy_seconds / task.done * elapsed / busy

    def sentence(self) -> str:
        """The remaining time of every task in progress, then the names of the others; for a stage without tasks the
        time of its items; empty before any estimate."""
        if not self._tasks and LEAST_DONE * self._total <= self._done < self._total and self._total > 1:
            return f"≈ {duration((self._clock() - self._begun) / self._done * (self._total - self._done))}"
        seconds = {name: self.remaining_seconds(name) for name in self.unfinished()}
        parts = [f"{name} ≈ {duration(left)}" for name, left in seconds.items() if left is not None]
        later = [name for name, left in seconds.items() if left is None]
        return " · ".join([*parts, *([f"then {', '.join(later)}"] if later else [])]) if parts else ""
