"""What a person sees while a command runs: progress on stderr; stdout holds only the result."""

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from q36eval.app.cli.options import Quiet
from q36eval.interrupts import surviving_hangup
from q36eval.probes import Progress
from q36eval.run.progress import Estimate

BAR_WIDTH = 20
SECONDS_BETWEEN_LINES = 30.0
"""How often a log (no terminal) hears what is left."""


class _Bars(bars.Progress):
    """One line a stage, and below them what is left: of all that, only that line and a stage's title are ever cut."""

    left = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.left:
            yield Text(self.left, no_wrap=True, overflow="ellipsis")


def _columns() -> list[bars.ProgressColumn]:
    whole = Column(no_wrap=True)
    title = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return [
        TextColumn("{task.description}", markup=False, table_column=title),
        BarColumn(bar_width=BAR_WIDTH, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(table_column=whole),
    ]


class ConsoleProgress(Progress, AbstractContextManager["ConsoleProgress"]):
    """Progress bars on stderr; silent where stderr is no terminal, except for one line per stage.

    What is followed here is measured to its end where that terminal goes away.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        drawn = self._console.is_terminal and not self._console.is_dumb_terminal and not Quiet.wanted
        self._progress = _Bars(*_columns(), console=self._console, disable=not drawn, expand=True)
        self._task: TaskID | None = None
        self._estimate = Estimate()
        self._told = time.monotonic()
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(surviving_hangup())
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            self._progress.left = ""
            self._progress.stop()

    def stage(self, title: str, total: int) -> None:
        """Begin a stage of `total` items."""
        if self._progress.disable and not Quiet.wanted:
            print(f"{title}: {total} items", file=sys.stderr, flush=True)
        self._progress.left = ""
        self._task = self._progress.add_task(title, total=total)
        self._estimate, self._told = Estimate(), time.monotonic()

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""
        if self._task is not None:
            self._progress.advance(self._task, count)

    def expect(self, task: str, tokens: int) -> None:
        """So many tokens of a task are ahead in this stage."""
        self._estimate.expect(task, tokens)

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """So many of them are done, in so many seconds of the engine's work."""
        self._estimate.worked(task, tokens, seconds)
        self._tell_left()

    def dropped(self, task: str, tokens: int) -> None:
        """So many of them need not be done after all."""
        self._estimate.dropped(task, tokens)

    def _tell_left(self) -> None:
        now = time.monotonic()
        waited = SECONDS_BETWEEN_LINES if self._progress.disable else 1.0
        if now - self._told < waited or self._task is None:
            return
        self._told = now
        left = self._estimate.sentence()
        if not self._progress.disable:
            self._progress.left = f"Remaining: {left}" if left else ""
        elif left and not Quiet.wanted:
            print(f"Remaining: {left}", file=sys.stderr, flush=True)
