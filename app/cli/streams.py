"""Standard streams that may be closed, full or gone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Output:
    """Standard output that never stops a command: what cannot be written is dropped, and `error` says why.

    A gate whose reader has left (`| head`) or whose log disk is full still decides, keeps and reports.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write, or drop, and say that it was written."""
        if self.error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self.error = error
        return len(text)

    def flush(self) -> None:
        """Flush what is not dropped."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_streams() -> None:
    """Give the standard streams that whoever started this process closed to nowhere.

    Else the first file opened, a database, would stand where something may write a warning to; and Python prints to
    standard output what is for a standard error that is not there.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


@contextmanager
def tolerant_output() -> Iterator[Output]:
    """Standard output as an `Output`; nothing is left in it that Python would fail to write at its end."""
    own = sys.stdout
    output = Output(own)
    sys.stdout = output
    try:
        yield output
    finally:
        output.flush()
        sys.stdout = own
        if output.error is not None:
            _send_nowhere(own)


def _send_nowhere(stream: TextIO) -> None:
    with suppress(OSError, ValueError):  # a stream that is no file keeps what it has
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
