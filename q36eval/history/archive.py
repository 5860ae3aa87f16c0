"""An archive of runs: one ZIP file that holds them whole. What is read of it is checked, and nothing is extracted.

    manifest.json      format, version, the runs
    runs/RUN.json      a run: record, measurements with the evidence per cluster, items, failures, decisions, events
    files/RUN/NAME     its files of every token

The same runs give the same bytes. Damage shows in the checksums of the ZIP file; what somebody changed does not show.
"""

import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, TypeVar

from pydantic import ValidationError

from q36eval.errors import StorageError, UsageError
from q36eval.files import first_problem, replacing
from q36eval.history import WholeRun
from q36eval.records import Record
from q36eval.token_files import TOKENS, WORST

VERSION = 3
MANIFEST = "manifest.json"
FILES = (TOKENS, WORST)
"""Files of a run in its folder of the working state."""

MOMENT = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive: the time of writing is not part of its content."""

RUN_ID = re.compile(r"(?!latest(?:/|$))[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
"""The form of a run's id; `latest` refers to the newest run, and cannot be an id."""

_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, RuntimeError, ValueError, OSError)
"""The zip library's exceptions for a missing, damaged or encrypted file."""

UNPACKED_BYTES, UNPACKED_RATIO = 64 << 20, 100
"""The maximum unpacked size of an archive in bytes, and above it the maximum ratio to its file.

A run of the sandbox has 3 MB of measurements and 5 MB of items, compressed to a sixth; one of a 35B branch about ten
times that.
"""

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods of an export. Others raise different errors, and may request gigabytes for a dictionary."""

RecordT = TypeVar("RecordT", bound=Record)


class Manifest(Record):
    """The content of an archive; written last."""

    format: Literal["q36eval-history"]
    version: int
    runs: tuple[str, ...]


class Writer:
    """Writes an archive; it appears only when complete."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip, self._runs = archive, list[str]()

    def add_run(self, whole: WholeRun, folder: Path) -> None:
        """Add a run, and its files that are in `folder`."""
        self._runs.append(whole.run.id)
        self._add(f"runs/{whole.run.id}.json", whole)
        for name in FILES:
            if (folder / name).is_file():
                held = f"files/{whole.run.id}/{name}"
                with (folder / name).open("rb") as source, self._opened(held, zipfile.ZIP_STORED) as target:
                    shutil.copyfileobj(source, target)

    def finish(self) -> None:
        """Write the manifest."""
        self._add(MANIFEST, Manifest(format="q36eval-history", version=VERSION, runs=tuple(self._runs)))

    def _add(self, name: str, record: Record) -> None:
        with self._opened(name, zipfile.ZIP_DEFLATED) as target:
            target.write(record.model_dump_json().encode())

    def _opened(self, name: str, how: int) -> IO[bytes]:
        info = zipfile.ZipInfo(name, MOMENT)
        info.compress_type, info.external_attr = how, 0o644 << 16
        return self._zip.open(info, "w", force_zip64=True)


@contextmanager
def writing(file: Path) -> Iterator[Writer]:
    """An archive that becomes `file` when complete; on failure an earlier file stays.

    Raises:
        StorageError: the disk refuses it.
    """
    try:
        with replacing(file) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            writer = Writer(archive)
            yield writer
            writer.finish()
    except OSError as error:
        raise StorageError(
            "file-unwritable", f"The archive {file} could not be written: {error.strerror or error}."
        ) from error


class Reader:
    """Reads an archive that was checked as a whole."""

    def __init__(self, file: Path, archive: zipfile.ZipFile) -> None:
        """Check the manifest, and that no file is damaged.

        Raises:
            UsageError: it is no archive of ours, damaged, of another version, or claims more than any export does.
        """
        self.file, self._zip = file, archive
        self._check_claims()
        if archive.namelist().count(MANIFEST) != 1:
            raise self._refused("it is not an archive of runs")
        manifest = self._record(MANIFEST, Manifest)
        if manifest.version != VERSION:
            remedy = "upgrade q36eval" if manifest.version > VERSION else "export the runs again"
            raise self._refused(f"another q36eval wrote it (version {manifest.version}); {remedy}")
        self.runs = manifest.runs
        if len(set(self.runs)) < len(self.runs) or not all(map(RUN_ID.fullmatch, self.runs)):
            raise self._refused("it names a run twice, or as no run can be called")
        with self._intact("a file in it"):
            damaged = archive.testzip()
        if damaged is not None:
            raise self._refused(f"{damaged} is damaged")

    def run(self, run_id: str) -> WholeRun:
        """One of its runs.

        Raises:
            UsageError: it says what this version does not know, or is of another run.
        """
        whole = self._record(f"runs/{run_id}.json", WholeRun)
        if {whole.run.id, *(event.run_id for event in whole.about.events)} != {run_id}:
            raise self._refused(f"what it holds of run {run_id} is of another run")
        return whole.model_copy(update={"run": whole.run.model_copy(update={"imported": None})})

    def keep_files(self, run_id: str, folder: Path) -> None:
        """Write those files of a run into its `folder` that are not there.

        Raises:
            StorageError: the disk refuses it.
        """
        for name in FILES:
            held = f"files/{run_id}/{name}"
            if held not in self._zip.namelist() or (folder / name).is_file():
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with replacing(folder / name) as temporary, temporary.open("wb") as target, self._zip.open(held) as of:
                    shutil.copyfileobj(of, target)
            except zipfile.BadZipFile as error:  # it changed meanwhile
                raise self._refused(f"{held} is damaged ({error})") from error
            except OSError as error:
                raise StorageError(
                    "file-unwritable", f"The files of run {run_id} cannot be kept: {error.strerror or error}."
                ) from error

    def _check_claims(self) -> None:
        """Check the sizes in the file's directory before unpacking."""
        infos = self._zip.infolist()
        if any(info.compress_type not in _PACKED for info in infos):
            raise self._refused("no export packs files in that way")
        most = UNPACKED_BYTES + UNPACKED_RATIO * self.file.stat().st_size
        claimed = sum(info.file_size for info in infos)
        if claimed > most:
            raise self._refused(f"it unpacks to {claimed:,} bytes, more than any export of its size ({most:,})")

    def _record(self, name: str, kind: type[RecordT]) -> RecordT:
        """A file of the archive; its checksum is compared each time: the archive may have changed meanwhile."""
        with self._intact(name):
            content = self._zip.read(name)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            problem = first_problem(error, kind).splitlines()[0].rstrip(".")
            raise self._refused(
                f"{name} cannot be read (at {problem}); a newer version wrote it, or it was edited"
            ) from error

    @contextmanager
    def _intact(self, name: str) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise self._refused(f"{name} is damaged ({error})") from error

    def _refused(self, why: str) -> UsageError:
        return UsageError("archive-invalid", f"The archive {self.file} cannot be imported: {why}.")


@contextmanager
def reading(file: Path) -> Iterator[Reader]:
    """An archive, checked as a whole before anything of it is used.

    Raises:
        UsageError: there is no such file, or it is none that can be imported.
    """
    if file.exists() and not file.is_file():  # reading a pipe would block forever
        raise UsageError("file-not-regular", f"The archive {file} cannot be imported: it is not a file.")
    try:
        archive = zipfile.ZipFile(file)
    except OSError as error:
        raise UsageError("file-unreadable", f"The archive {file} cannot be read: {error.strerror or error}.") from error
    except _BROKEN as error:
        raise UsageError(
            "archive-invalid", f"The archive {file} cannot be imported: it is damaged, or no archive at all."
        ) from error
    with archive:
        yield Reader(file, archive)
