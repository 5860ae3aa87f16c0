"""Which checkpoints are open: each folder or GGUF once in a measurement, so all who read it have the same files."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from q36eval.checkpoints.gguf.files import HeldGguf, is_gguf
from q36eval.checkpoints.open_files import HeldFolder


class OpenFolders:
    """The folders that one measurement has opened."""

    def __init__(self) -> None:
        self._by_path: dict[str, HeldFolder] = {}
        self._reference: Path | None = None

    def measure_against(self, reference: Path | None) -> None:
        """Whose tokenizer a GGUF is measured with, to be said before one is held."""
        self._reference = reference

    def hold(self, folder: Path) -> HeldFolder:
        """That folder as it was when it was first asked for."""
        path = os.path.abspath(folder)
        if path not in self._by_path:
            self._by_path[path] = _opened(folder, self._texts)
        return self._by_path[path]

    def _texts(self) -> HeldFolder | None:
        return None if self._reference is None else self.hold(self._reference)

    def verify(self) -> None:
        """To be called at the end.

        Raises:
            ChangedError: one of them is not what was opened.
        """
        for folder in self._by_path.values():
            folder.check()


_open: ContextVar[OpenFolders | None] = ContextVar("open_folders", default=None)


@contextmanager
def opened_once() -> Iterator[OpenFolders]:
    """Within it every checkpoint folder is opened once: whoever reads or hashes one has the same files.

    Within another one it is that one.
    """
    outer = _open.get()
    if outer is not None:
        yield outer
        return
    token = _open.set(OpenFolders())
    try:
        folders = _open.get()
        assert folders is not None, "it was just set"
        yield folders
    finally:
        _open.reset(token)


def hold(folder: "str | Path | HeldFolder") -> HeldFolder:
    """The folder with its files held open: the one of `opened_once`, else one of one's own."""
    if isinstance(folder, HeldFolder):
        return folder
    folders = _open.get()
    return _opened(Path(folder), lambda: None) if folders is None else folders.hold(Path(folder))


def _opened(path: Path, texts: Callable[[], HeldFolder | None]) -> HeldFolder:
    """A folder, or a GGUF with the text files that it is measured with."""
    return HeldGguf(path, texts()) if is_gguf(path) else HeldFolder(path)
