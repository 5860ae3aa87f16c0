"""The display while a command runs: progress on stderr; stdout holds only the result.

In a terminal this is a bar; elsewhere, in a log, a line at least every ten seconds.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from q36eval.app.cli.options import Quiet
from q36eval.inert_text import SENTENCE, plain
from q36eval.interrupts import surviving_hangup
from q36eval.probes import Progress
from q36eval.reports.text import duration
from q36eval.run.progress import Estimate

BAR_WIDTH = 20
SECONDS_BETWEEN_LINES = 10.0
"""The interval of lines in a log (no terminal) with the current work, its speed, and the remaining work."""
SECONDS_BEFORE_FIRST_LINE = 3.0
"""The time to the first line: the interpreter and some libraries were loaded before it."""


class _Bars(bars.Progress):
    """One line per stage, and below them the remaining work: only that line and a stage's title are ever cut."""

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


class _Lines(threading.Thread):
    """Writes the result of `line` to stderr, every `between` seconds, and first after `first`.

    Directly to the descriptor: a forked worker must not inherit a locked stream.
    """

    def __init__(self, line: Callable[[], str], first: float, between: float) -> None:
        super().__init__(name="progress", daemon=True)
        self._line, self._first, self._between, self._ended = line, first, between, threading.Event()

    def run(self) -> None:
        pause = min(self._first, self._between)
        while not self._ended.wait(pause):
            pause = self._between
            # no reader, or the state changed during reading: the next line follows
            with suppress(OSError, ValueError, RuntimeError):
                if line := self._line():
                    os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="replace"))

    def end(self) -> None:
        """Write nothing from here on."""
        self._ended.set()
        self.join()


class ConsoleProgress(Progress, AbstractContextManager["ConsoleProgress"]):
    """Progress bars on stderr; lines if stderr is not a terminal.

    If that terminal disappears, the measurement continues to its end.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        drawn = self._console.is_terminal and not self._console.is_dumb_terminal and not Quiet.wanted
        self._progress = _Bars(*_columns(), console=self._console, disable=not drawn, expand=True)
        self._task: TaskID | None = None
        self._estimate = Estimate()
        self._told = time.monotonic()
        self._entered = ExitStack()
        self._stage, self._done, self._total, self._begun = "", 0, 0, time.monotonic()
        self._within = ""
        self._lines = (
            None if drawn or Quiet.wanted else _Lines(self._line, SECONDS_BEFORE_FIRST_LINE, SECONDS_BETWEEN_LINES)
        )

    def __enter__(self) -> Self:
        self._entered.enter_context(surviving_hangup())
        self._progress.start()
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            if self._lines is not None:
                self._lines.end()
            self._progress.left = ""
            self._progress.stop()

    def stage(self, title: str, total: int) -> None:
        """Begin a stage of `total` items."""
        self._stage, self._done, self._total, self._begun, self._within = title, 0, total, time.monotonic(), ""
        if self._lines is not None:
            print(f"{title}: {total:,} items" if total > 1 else title, file=sys.stderr, flush=True)
        self._progress.left = ""
        self._task = self._progress.add_task(title, total=total)
        self._estimate, self._told = Estimate(total=total), time.monotonic()

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""
        self._done, self._within = self._done + count, ""
        self._estimate.advance(count)
        if self._task is not None:
            self._progress.advance(self._task, count)
        self._tell_left()

    def expect(self, task: str, tokens: int) -> None:
        """That many tokens of a task are expected in this stage."""
        self._estimate.expect(task, tokens)

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """That many of them are done, in that many seconds of the engine's work."""
        self._estimate.worked(task, tokens, seconds)
        self._tell_left()

    def dropped(self, task: str, tokens: int) -> None:
        """That many of them no longer need to be done."""
        self._estimate.dropped(task, tokens)

    def within(self, what: str, done: int, total: int) -> None:
        """Progress of a step that the current item, or all items, wait for."""
        self._within = f"{what} {done:,} of {total:,}" if done < total else ""
        if not self._progress.disable:
            self._progress.left = self._within

    def note(self, sentence: str) -> None:
        """A note for a person on how the work is done, on a separate line."""
        if not Quiet.wanted:
            self._console.print(Text(plain(sentence, SENTENCE)), soft_wrap=True)

    def _tell_left(self) -> None:
        now = time.monotonic()
        if self._progress.disable or now - self._told < 1.0 or self._task is None:
            return
        self._told = now
        left = self._estimate.sentence()
        self._progress.left = f"Remaining: {left}" if left else ""

    def _line(self) -> str:
        """The state of the work, in one line."""
        seconds = time.monotonic() - self._begun
        where, so_far = self._stage, f"{duration(seconds)} so far"
        if not where:  # libraries are loaded, checkpoints are hashed
            return f"preparing, {so_far}"
        if self._done >= self._total > 0:
            return f"after {where}: {so_far}"
        parts = [
            where
            if self._total <= 1
            else f"{where}: {self._done:,} of {self._total:,} ({self._done / self._total:.0%})"
        ]
        if self._done and self._total > 1:
            parts.append(f"{self._done / seconds:.3g} a second")
        parts.append(self._within or so_far)
        left = self._estimate.sentence()
        return ", ".join([*parts, *([f"remaining: {left}"] if left else [])])
