"""What a person sees while a command runs: progress on stderr; stdout holds only the result."""

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ConsoleProgress(AbstractContextManager["ConsoleProgress"]):
    """Progress bars on stderr; silent where stderr is no terminal, except for one line per stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, title: str, total: int) -> None:
        """Begin a stage of `total` items."""
        if self._progress.disable:
            print(f"{title}: {total} items", file=sys.stderr, flush=True)
        self._task = self._progress.add_task(title, total=total)

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""
        if self._task is not None:
            self._progress.advance(self._task, count)
