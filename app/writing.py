"""Writes whole files, and to a standard output that may be full or gone."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from q36eval.errors import StorageError


def write_whole(path: Path, text: str) -> None:
    """Write a file as UTF-8; where that fails none is left, neither half of it nor that of an earlier run.

    Raises:
        StorageError: it could not be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise StorageError(f"The file {path} could not be written: {error.strerror or error}.") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` at the end; where anything fails that stays as it was.

    Raises:
        OSError: the disk refuses it.
    """
    place = path.resolve()  # of a link, what it leads to
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if place.exists():
            shutil.copymode(place, temporary)
        os.replace(temporary, place)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_whole(path: Path, text: str) -> None:
    """Put text, as UTF-8 with its own line ends, in a file's place; where that fails the file stays as it was.

    Raises:
        StorageError: it could not be written.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(f"The file {path} could not be written: {error.strerror or error}.") from error


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
