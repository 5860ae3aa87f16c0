"""How long a measurement will still take: from what its own items took so far, and nothing else."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Task:
    tokens: int
    done: int = 0
    busy_seconds: float = 0.0

    @property
    def left(self) -> int:
        return self.tokens - self.done


class Estimate:
    """Remaining seconds by task.

    A task's own engine seconds per token so far, times its tokens that are left, divided by how many seconds of the
    engine's work went into one second of waiting (workers work side by side). A task of which nothing is done yet has
    no estimate: its tokens may cost anything, generated ones many times those that are read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun = clock, clock()
        self._tasks: dict[str, _Task] = {}

    def expect(self, task: str, tokens: int) -> None:
        """So many more tokens are to be worked on."""
        self._tasks.setdefault(task, _Task(0)).tokens += tokens

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """So many tokens are done, which took the engine so long."""
        self._tasks[task].done += tokens
        self._tasks[task].busy_seconds += seconds

    def dropped(self, task: str, tokens: int) -> None:
        """So many tokens need not be worked on after all."""
        self._tasks[task].tokens -= tokens

    def unfinished(self) -> list[str]:
        """Tasks with tokens left, in the order in which they were expected."""
        return [name for name, task in self._tasks.items() if task.left > 0]

    def remaining_seconds(self, task: str) -> float | None:
        """Seconds until that task would be done were it worked on alone; None where nothing of it is done yet."""
        own = self._tasks[task]
        pace = self._seconds_per_token(own)
        return 0.0 if own.left == 0 else None if pace is None else pace * own.left

    def whole_seconds(self, task: str) -> float | None:
        """Seconds for all tokens of that task, those that are done among them."""
        own = self._tasks[task]
        pace = self._seconds_per_token(own)
        return None if pace is None else pace * own.tokens

    def _seconds_per_token(self, task: _Task) -> float | None:
        elapsed = self._clock() - self._begun
        busy = sum(each.busy_seconds for each in self._tasks.values())
        if task.done == 0 or busy <= 0 or elapsed <= 0:
            return None
        return task.busy_seconds / task.done * elapsed / busy

    def sentence(self) -> str:
        """What is left, as a person reads it."""
        parts = []
        for name in self.unfinished():
            seconds = self.remaining_seconds(name)
            parts.append(f"{name} {'not begun' if seconds is None else 'about ' + duration(seconds)}")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Rounded as an estimate deserves: `under 5 s`, `25 s`, `4 min`, `2 h 10 min`."""
    if seconds < 5:
        return "under 5 s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
