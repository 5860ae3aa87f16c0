"""Standard streams that may be closed, full, gone, or limited to few characters: none of that stops a command."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Output:
    """A standard stream that never stops a command: unwritable text is dropped, and `error` is the reason.

    A gate whose reader has left (`| head`), whose terminal is gone or whose log disk is full still decides, stores and
    reports. Nothing follows dropped text, unless `retrying`: then every write is tried again, as for a log.
    """

    def __init__(self, stream: TextIO, *, retrying: bool = False) -> None:
        self._stream, self._retrying = stream, retrying
        self.error: OSError | None = None
        self.is_document = False
        """Whether the text is the one document that a program reads."""
        self.is_kept = False
        """Whether the text is also in history, so that losing it is not a failure."""

    def write(self, text: str) -> int:
        """Write or drop the text; always reports success."""
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush unless dropped."""
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
        """Why an expected text was not delivered; None if it was, or nobody expects it.

        A reader may leave, and a closed stream expects no text; a document, however, was requested.
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
    """Write a requested document, such as JSON: a command that cannot deliver it fails (exit 4)."""
    if isinstance(sys.stdout, Output):
        sys.stdout.is_document, sys.stdout.is_kept = True, False
    sys.stdout.write(text)


def kept_in_history() -> None:
    """Declare that this command's text is only a copy: its exit code gives the result, whether or not it is read."""
    if isinstance(sys.stdout, Output):
        sys.stdout.is_kept = True


@contextmanager
def tolerant_output() -> Iterator[Output]:
    """Both standard streams as `Output`, of which this is stdout; Python raises no write errors at its end."""
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
    """Redirect closed standard streams to the null device; returns which were closed.

    Otherwise the first opened file, a database, would get a standard stream's descriptor and receive warnings; and
    Python prints to standard output if standard error is missing.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    closed = {name for name in ("stdout", "stderr") if getattr(sys, name) is None}
    for name in closed:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    return closed


def _escape(stream: TextIO) -> None:
    """Let a stream write every character (JSON is ASCII), and wait for a slow reader in any pipe mode."""
    with suppress(OSError, ValueError):  # a stream that is no file, or a closed one
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    with suppress(OSError, ValueError):
        os.set_blocking(stream.fileno(), True)
