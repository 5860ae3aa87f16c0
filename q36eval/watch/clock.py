"""The time that the watch lives by: the machine's, or in a test a day that passes in minutes."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

STEP_S = 0.5
"""So long at most until whoever waits shows that it is alive."""


class Clock(Protocol):
    """The time in UTC, and a wait for a later one."""

    def now(self) -> datetime: ...
    def wait(self, until: datetime, beat: Callable[[], None]) -> None: ...


class SystemClock:
    """The machine's."""

    def now(self) -> datetime:
        """The time."""
        return datetime.now(UTC)

    def wait(self, until: datetime, beat: Callable[[], None]) -> None:
        """Return then, or once as long has passed as it was away, should the clock be set back meanwhile; a signal
        interrupts. `beat` is called meanwhile."""
        end = time.monotonic() + (until - self.now()).total_seconds()
        while (remaining := min((until - self.now()).total_seconds(), end - time.monotonic())) > 0:
            beat()
            time.sleep(min(STEP_S, remaining))
