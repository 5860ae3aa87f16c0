"""Finished rounds on their way into history: from the disk, the oldest first, each once.

A round is in the spool before it is anywhere else. Its id was made before it began, and history takes no id twice: so
one that was written just before a kill is found there, and leaves the spool without being written again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from q36eval.errors import Q36Error, UsageError
from q36eval.history import History, WholeRun
from q36eval.history.run_transfer import put_run
from q36eval.watch.store import Store

SILENT_S = 30.0
"""So long an attempt may take before history counts as away."""


class Spool:
    """Brings rounds into a history that may be away. `open_history` is called again after every failure."""

    def __init__(self, store: Store, open_history: Callable[[], History], log: Callable[[str], None]) -> None:
        self._store, self._open, self._log = store, open_history, log
        self._history: History | None = None
        self._answered = True
        self._began: float | None = None

    @property
    def reachable(self) -> bool:
        """Whether the newest attempt went well, and none has been under way for long."""
        began = self._began
        return self._answered and (began is None or time.monotonic() - began < SILENT_S)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    def deliver(self) -> int:
        """Write what waits, until history fails; how many were written.

        Raises:
            StorageError: the spool itself cannot be read or written.
        """
        written = 0
        while (waiting := self._store.next_spooled()) is not None:
            run_id, body = waiting
            try:
                whole = WholeRun.model_validate_json(body)
                with self._attempt():
                    history = self._opened()
                    if not history.holds(run_id):
                        put_run(history, whole, imported=None)
            except ValidationError as error:
                self._refuse(f"round {run_id} in the spool cannot be read: {error.error_count()} problems")
                return written
            except Q36Error as error:
                if isinstance(error, UsageError) and "already" in str(error):  # another process was faster
                    self._store.unspool(run_id)
                    continue
                self._refuse(str(error))
                return written
            except Exception as error:  # whatever a driver raises of a server that is away
                self._refuse(f"{type(error).__name__}: {error}")
                return written
            with self._store.transaction():
                self._store.unspool(run_id)
            self._answered = True
            written += 1
        return written

    def check(self) -> None:
        """Look whether history answers, while nothing waits."""
        try:
            with self._attempt():
                self._opened().holds("none")
            self._answered = True
        except Exception as error:
            self._refuse(str(error))

    def close(self) -> None:
        """Give the history back."""
        if self._history is not None:
            self._history.close()
            self._history = None

    def _opened(self) -> History:
        if self._history is None:
            self._history = self._open()
        return self._history

    def _refuse(self, why: str) -> None:
        if self._answered:
            self._log(f"History takes no round ({why}); finished rounds wait on disk.")
        self._answered = False
        self.close()
