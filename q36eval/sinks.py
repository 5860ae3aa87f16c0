"""What a run is told to and handed: where its outcomes go, who follows its progress, what is known of the reference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from q36eval.probes import Digest
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName

Captures = Mapping[ProbeName, Mapping[str, Digest]]
"""What is kept of the reference's answers, by probe and item key."""


class Sink(Protocol):
    """Where outcomes and measurements go, at once."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None: ...

    def add_measurement(self, measurement: Measurement) -> None: ...

    def add_failure(self, failure: ProbeFailure) -> None: ...

    def known_items(self) -> Sequence[ItemOutcome]:
        """Outcomes already written, when a run is resumed."""
        ...


class MutedSink:
    """A sink for planning that only checks."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None: ...

    def add_measurement(self, measurement: Measurement) -> None: ...

    def add_failure(self, failure: ProbeFailure) -> None: ...

    def known_items(self) -> Sequence[ItemOutcome]:
        return ()


class Progress(Protocol):
    """What the runner tells while it works."""

    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@runtime_checkable
class TellsTrouble(Protocol):
    """Progress that can say what errored and is asked again."""

    def retried(self, count: int, error: str) -> None: ...


@runtime_checkable
class TimesTasks(Protocol):
    """Progress that can say how long each task will still take."""

    def expect(self, task: str, tokens: int) -> None: ...

    def worked(self, task: str, tokens: int, seconds: float) -> None: ...

    def dropped(self, task: str, tokens: int) -> None: ...


def told_of_retries(progress: Progress) -> Callable[[int, str], None] | None:
    """What is to be called when something errored and is asked again; None where nobody listens."""
    return progress.retried if isinstance(progress, TellsTrouble) else None
