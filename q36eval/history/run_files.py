"""The files of runs: kept by their content below the working state, so that runs of equal content share one.

While a run is measured its files lie in a folder of its own (`tokens/RUN`); when it ends they are kept here and written
down in history.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from q36eval.files import TEMPORARY, replacing
from q36eval.history.records import Artifact
from q36eval.history.store import History
from q36eval.locks import exclusive
from q36eval.token_files import TOKENS, WORST

NAMES = (TOKENS, WORST)
"""What a run may leave."""

CHUNK_BYTES = 1 << 20


class RunFiles:
    """The files of the runs of one working state."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / "artifacts"

    def held(self) -> AbstractContextManager[None]:
        """Nobody else keeps or collects files meanwhile: what is kept is written down before it may be collected."""

        def wait() -> None:
            """Its turn comes."""

        return exclusive(self.state / "artifacts.lock", wait)

    def path(self, sha256: str) -> Path:
        """Where content of that hash lies, if it is here."""
        return self.folder / sha256[:2] / sha256

    def find(self, history: History, run_id: str, name: str) -> Path | None:
        """A file of a run, wherever it lies; None where the run left none, or it is gone."""
        kept = next((artifact for artifact in history.artifacts(run_id) if artifact.name == name), None)
        places = [] if kept is None else [self.path(kept.sha256)]
        return next((place for place in (*places, self.working(run_id) / name) if place.is_file()), None)

    def working(self, run_id: str) -> Path:
        """The folder of the run while it is measured."""
        return self.state / "tokens" / run_id

    def keep_run(self, history: History, run_id: str) -> None:
        """Keep the files in the run's folder by their content, and write them down; the folder stays.

        Raises:
            OSError: the disk refuses it; the files are where they were.
        """
        for name in NAMES:
            file = self.working(run_id) / name
            if file.is_file():
                with self.held():
                    self.note(history)
                    sha256, size = self.keep(file)
                    history.add_artifact(Artifact(run_id=run_id, name=name, sha256=sha256, size_bytes=size))

    def note(self, history: History) -> None:
        """Write down that a history refers to files here, so that nobody collects them who looks into another one."""
        noted = (_named(history), history.id)
        if noted not in self._noted():
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.notes.open("a", encoding="utf-8") as notes:
                notes.write("\t".join(noted) + "\n")

    def histories(self, history: History, own: Path) -> list[tuple[str, str]]:
        """The other histories that may refer to files here: file or URL, and the id by which each is known.

        One that is no more where it was may be on a disk that is not mounted, and what was moved or replaced may come
        back. `own` is the state's own, which may do so whether or not it was noted; its id is empty then.
        """
        here = (_named(history), history.id)
        others = [noted for noted in self._noted() if noted != here]
        own_name = str(own.resolve())
        if own.exists() and own_name not in {here[0], *(name for name, _ in others)}:
            others.append((own_name, ""))
        return others

    @property
    def notes(self) -> Path:
        """The file that says which histories refer to files here, a line each."""
        return self.folder / "histories.txt"

    def _noted(self) -> list[tuple[str, str]]:
        lines = self.notes.read_text(encoding="utf-8").splitlines() if self.notes.exists() else []
        parts = (line.partition("\t") for line in lines if line.strip())
        return list(dict.fromkeys((name, history_id) for name, _, history_id in parts))

    def keep(self, file: Path, sha256: str | None = None) -> tuple[str, int]:
        """Content hash and size in bytes of a file that is now kept, linked where the file system can, else copied.

        Raises:
            OSError: the disk refuses it.
        """
        content_hash = sha256 or sha256_of(file)
        place = self.path(content_hash)
        if not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary:
                temporary.unlink(missing_ok=True)  # what a killed process of this number left
                _link_or_copy(file, temporary)
        return content_hash, place.stat().st_size

    def drop_working(self, history: History, run_id: str) -> None:
        """Remove the run's folder once all that is in it is kept."""
        folder = self.working(run_id)
        if folder.is_dir() and self.is_kept(history, run_id):
            shutil.rmtree(folder, ignore_errors=True)

    def is_kept(self, history: History, run_id: str) -> bool:
        """Whether every file in the run's folder is kept by its content as well.

        What a killed process left half written is no file of the run: nobody finishes it under that name.
        """
        kept = {artifact.name: artifact.sha256 for artifact in history.artifacts(run_id)}
        files = [path for path in self.working(run_id).rglob("*") if path.is_file() and path.suffix != TEMPORARY]
        return all(kept.get(path.name) == sha256_of(path) and self.path(kept[path.name]).is_file() for path in files)

    def all(self) -> Iterator[Path]:
        """Every file that is kept, and what a killed process left half done."""
        yield from sorted(path for path in self.folder.glob("??/*") if path.is_file())


def _named(history: History) -> str:
    """A history as it is called wherever it is named: a file by its whole path, a URL without its password."""
    return history.name if "://" in history.name else str(Path(history.name).resolve())


def sha256_of(file: Path) -> str:
    """Content hash of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _link_or_copy(file: Path, to: Path) -> None:
    try:
        os.link(file, to)  # both are only ever replaced, never written to
    except OSError:
        shutil.copyfile(file, to)
