"""Standard streams that may be closed, full, gone, or of an alphabet too small: none of that stops a command."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Output:
    """A standard stream that never stops a command: what cannot be written is dropped, and `error` says why.

    A gate whose reader has left (`| head`), whose terminal is gone or whose log disk is full still decides, keeps and
    reports. Nothing follows what was dropped, unless `retrying`: then every write is tried anew, as a log wants it.
    """

    def __init__(self, stream: TextIO, *, retrying: bool = False) -> None:
        self._stream, self._retrying = stream, retrying
        self.error: OSError | None = None
        self.is_document = False
        """Whether what is written is the one document that a program reads."""
        self.is_kept = False
        """Whether what is written stands in history as well, so that losing it is no failure."""

    def write(self, text: str) -> int:
        """Write, or drop, and say that it was written."""
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush what is not dropped."""
        self._try(self._stream.flush)

    def end(self) -> None:
        """Flush for the last time; a signal ends the wait for a reader that does not read."""
        try:
            self.flush()
        except KeyboardInterrupt:
            self.error = OSError(errno.EPIPE, "nobody reads it")

    def _try(self, call: Any, *arguments: str) -> None:
        if self.error is not None and not self._retrying:
            return
        try:
            call(*arguments)
        except OSError as error:
            self.error = error
        except ValueError:  # a library closed it
            self.error = OSError(errno.EBADF, "it is closed")

    def failure(self) -> str | None:
        """Why what a person or program waits for has not arrived; None where it has, or nobody waits.

        A reader may leave, and who closed the stream wants no text; a document, it seems, was wanted.
        """
        if self.error is None or self.error.errno == errno.EPIPE:
            return None
        if self.error.errno == errno.EBADF and not self.is_document:
            return None
        what = "document" if self.is_document else "output"
        return f"The {what} could not be written: {self.error.strerror or self.error}."

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_document(text: str) -> None:
    """Write what was asked for as one document, such as JSON: a command that cannot deliver it has failed (exit 4)."""
    if isinstance(sys.stdout, Output):
        sys.stdout.is_document, sys.stdout.is_kept = True, False
    sys.stdout.write(text)


def kept_in_history() -> None:
    """Say that the text this command writes is only a copy: its exit code says what was found, whoever reads it."""
    if isinstance(sys.stdout, Output):
        sys.stdout.is_kept = True


@contextmanager
def tolerant_output() -> Iterator[Output]:
    """Both standard streams as `Output`, of which this is stdout; Python fails to write nothing of them at its end."""
    closed = _open_closed()
    own = sys.stdout, sys.stderr
    for stream in own:
        _escape(stream)
    output, log = Output(sys.stdout), Output(sys.stderr, retrying=True)
    if "stdout" in closed:
        output.error = OSError(errno.EBADF, "it is closed")
    sys.stdout, sys.stderr = output, log
    try:
        yield output
    finally:
        for stream in (output, log):
            stream.end()
        sys.stdout, sys.stderr = own
        for stream, raw in zip((output, log), own, strict=True):
            if stream.error is not None:
                with suppress(OSError, ValueError):  # a stream that is no file keeps what it has
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, raw.fileno())
                    os.close(nowhere)


def _open_closed() -> set[str]:
    """Give the standard streams that whoever started this process closed to nowhere; returns which of them were.

    Else the first file opened, a database, would stand where something may write a warning to; and Python prints to
    standard output what is for a standard error that is not there.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    closed = {name for name in ("stdout", "stderr") if getattr(sys, name) is None}
    for name in closed:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    return closed


def _escape(stream: TextIO) -> None:
    """Let a stream write every character (JSON is ASCII), and wait for a slow reader whatever mode its pipe is in."""
    with suppress(OSError, ValueError):  # a stream that is no file, or a closed one
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    with suppress(OSError, ValueError):
        os.set_blocking(stream.fileno(), True)
