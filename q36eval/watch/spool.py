"""Finished rounds on their way into history: from the disk, the oldest first, each once.

A round is in the spool before it is anywhere else. Its id was made before it began, and history takes no id twice: so
one that was written just before a kill is found there, and leaves the spool without being written again.
"""

from collections.abc import Callable

from q36eval.errors import Q36Error
from q36eval.history import History, WholeRun
from q36eval.history.run_transfer import put_run
from q36eval.watch.store import Store


class Spool:
    """Brings rounds into a history that may be away. `open_history` is called again after every failure."""

    def __init__(self, store: Store, open_history: Callable[[], History], log: Callable[[str], None]) -> None:
        self._store, self._open, self._log = store, open_history, log
        self._history: History | None = None
        self.reachable = True
        """Whether the newest attempt succeeded."""

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
                if self._history is None:
                    self._history = self._open()
                if not self._history.holds(run_id):
                    put_run(self._history, whole, imported=None)
            except Exception as error:  # whatever a driver raises of a server that is away
                name = "" if isinstance(error, Q36Error) else f"{type(error).__name__}: "
                self._refuse(f"round {run_id}: {name}{' '.join(str(error).split())}")
                return written
            with self._store.transaction():
                self._store.unspool(run_id)
            self.reachable = True
            written += 1
        return written

    def close(self) -> None:
        """Give the history back."""
        if self._history is not None:
            self._history.close()
            self._history = None

    def _refuse(self, why: str) -> None:
        if self.reachable:
            self._log(f"History takes no round ({why}); finished rounds wait on disk.")
        self.reachable = False
        self.close()
