"""One branch of a gate that judges several at a time, in a process of its own.

`main` reads a pickled `Task` from standard input and writes the pickled `Outcome` to standard output; lines for people
go to standard error. Only `side_by_side` starts it: nobody else's bytes are read.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.app.cli.options import Quiet, open_history
from q36eval.app.cli.streams import tolerant_output
from q36eval.errors import Q36Error
from q36eval.interrupts import stoppable, surviving_hangup
from q36eval.run.request import Request

if TYPE_CHECKING:
    from q36eval.config import Paths
    from q36eval.history import History, RunRecord

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Task:
    """What is measured, where it is kept, and whether only errors are wanted."""

    request: Request
    paths: "Paths"
    quiet: bool


@dataclass(frozen=True)
class Outcome:
    """The run's id, or what prevented it."""

    run_id: str | None
    error: BaseException | None = None


def measured_here(request: Request, paths: "Paths", history: "History") -> "RunRecord":
    """The branch, measured and judged in this process; raises as `q36eval.run.measure.measure`."""
    from q36eval.app.cli.progress import ConsoleProgress

    with ConsoleProgress() as progress:
        from q36eval.run.measure import measure  # torch with it: seconds, in which lines are written

        return measure(request, paths, history, progress)


def measured(task: Task) -> Outcome:
    """The branch, measured and judged as a gate of it alone would do."""
    try:
        return Outcome(measured_here(task.request, task.paths, open_history(task.paths, writing=True)).id)
    except BaseException as error:  # whoever asked decides what it means, an interruption too
        return Outcome(None, error)


def main() -> None:
    """Read, measure, answer."""
    task: Task = pickle.load(sys.stdin.buffer)
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    Quiet.wanted = task.quiet
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with stoppable(), surviving_hangup(), tolerant_output():  # a command that is gone reads no lines, and is no fault
        outcome = measured(task)
    with answer:
        answer.write(_pickled(outcome))


def _pickled(outcome: Outcome) -> bytes:
    """As bytes; of an error that cannot be sent its words, and of one that nobody expected where it came from."""
    error = outcome.error
    if error is not None and not isinstance(error, Q36Error | KeyboardInterrupt):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)  # some errors can be written and not read
        return data
    except Exception:
        return pickle.dumps(Outcome(None, RuntimeError(f"{type(error).__name__}: {error}")))


def _end_with_parent(parent: int) -> None:
    """Be stopped where whoever asked is gone: nobody would hear of the verdict, and a resumed gate would wait."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
