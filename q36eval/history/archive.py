"""An archive of runs: one ZIP file that holds them whole. What is read of it is checked, and nothing is extracted.

It is read line by line, and how much it may unpack to is limited, so that a small file that unpacks to gigabytes is
refused before they are read.

    manifest.json                     format, version, the runs
    runs/RUN/run.json                 the run as it was begun, measured and decided
    runs/RUN/measurements.jsonl       with the evidence per cluster
    runs/RUN/items.jsonl              every item's outcome
    runs/RUN/about.json               failures, earlier decisions, events, files
    artifacts/SHA256                  files of runs by their content

The same runs give the same bytes. Damage shows in the checksums of the ZIP file; what somebody changed does not show.
"""

import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field, ValidationError

from q36eval.errors import StorageError, UsageError
from q36eval.files import replacing
from q36eval.history import About, RunRecord, WholeRun
from q36eval.records import ItemOutcome, Measurement, Record

MANIFEST = "manifest.json"
CHUNK_BYTES = 1 << 20
MOMENT = (1980, 1, 1, 0, 0, 0)
"""Of every file in an archive: when it was written is no part of what it holds."""

RUN_ID = re.compile(r"(?!latest(?:/|$))[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
"""Of a run; `latest` is how people call the newest one, and can be no run's name."""

_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, RuntimeError, ValueError)
"""What the zip library raises of a file that is missing, damaged or encrypted."""

UNPACKED_BYTES, UNPACKED_RATIO = 64 << 20, 100
"""An archive may unpack to so many bytes, and beyond that to so many times what its file takes.

A run of the sandbox takes 3 MB of measurements and 5 MB of items, packed six times as small; one of a 35B branch about
ten times that.
"""

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How an export packs. Other ways fail with errors of their own, and may claim gigabytes for a dictionary."""


class Manifest(Record):
    """What an archive holds; written last."""

    format: Literal["q36eval-history"]
    version: int
    runs: tuple[str, ...]
    files: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Read and not used: earlier versions wrote hashes here."""


VERSION = 2


class Writer:
    """Writes an archive; nothing is in its place before all of it is."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip, self._runs = archive, list[str]()

    def add_run(self, whole: WholeRun) -> None:
        """Add a run; its files are added by their own."""
        folder = f"runs/{whole.run.id}"
        self._runs.append(whole.run.id)
        self._add(f"{folder}/run.json", [_line(whole.run)])
        self._add(f"{folder}/measurements.jsonl", map(_line, whole.measurements))
        self._add(f"{folder}/items.jsonl", map(_line, whole.items))
        self._add(f"{folder}/about.json", [_line(whole.about)])

    def add_artifact(self, sha256: str, file: Path) -> None:
        """Add a file by its content, once."""
        name = f"artifacts/{sha256}"
        if name not in self._zip.namelist():
            with file.open("rb") as source:
                self._add(name, iter(lambda: source.read(CHUNK_BYTES), b""), zipfile.ZIP_STORED)

    def finish(self) -> None:
        """Write the manifest."""
        manifest = Manifest(format="q36eval-history", version=VERSION, runs=tuple(self._runs))
        self._add(MANIFEST, [_line(manifest)])

    def _add(self, name: str, parts: Iterator[bytes] | list[bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
        info = zipfile.ZipInfo(name, MOMENT)
        info.compress_type, info.external_attr = how, 0o644 << 16
        with self._zip.open(info, "w", force_zip64=True) as target:
            for part in parts:
                target.write(part)


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


@contextmanager
def writing(file: Path) -> Iterator[Writer]:
    """An archive under `file` once all of it is written; where that fails what was there before stays.

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
            UsageError: it is no archive of ours, damaged, a newer version's, or claims more than any export does.
        """
        self.file, self._zip = file, archive
        self._check_claims()
        self.manifest = self._manifest()
        for name in self._zip.namelist():
            digest = hashlib.sha256()
            for part in self._parts(name):
                digest.update(part)
            if name.startswith("artifacts/") and name != f"artifacts/{digest.hexdigest()}":
                raise self._refused(f"{name} is of another content than its name says")

    def run(self, run_id: str) -> WholeRun:
        """One of its runs, without its items.

        Raises:
            UsageError: it says what this version does not know, or is not of itself.
        """
        folder = f"runs/{run_id}"
        record = self._one(f"{folder}/run.json", RunRecord)
        about = self._one(f"{folder}/about.json", About)
        whole = WholeRun(
            run=record.model_copy(update={"imported": None}),
            measurements=tuple(self._records(f"{folder}/measurements.jsonl", Measurement)),
            items=(),
            about=about,
        )
        if {record.id, *(one.run_id for one in (*about.events, *about.artifacts))} != {run_id}:
            raise self._refused(f"what it holds of run {run_id} is of another run")
        return whole

    def items(self, run_id: str) -> Iterator[ItemOutcome]:
        """The items of one of its runs, one after the other.

        Raises:
            UsageError: one says what this version does not know.
        """
        return self._records(f"runs/{run_id}/items.jsonl", ItemOutcome)

    def has_artifact(self, sha256: str) -> bool:
        """Whether the archive holds the file with that content."""
        return f"artifacts/{sha256}" in self._zip.namelist()

    def artifact(self, sha256: str, target: IO[bytes]) -> None:
        """Copy a file's content into `target`."""
        for part in self._parts(f"artifacts/{sha256}"):
            target.write(part)

    def _manifest(self) -> Manifest:
        if self._zip.namelist().count(MANIFEST) != 1:
            raise self._refused("it is no archive of runs")
        text = b"".join(self._lines(MANIFEST))
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self._unreadable(MANIFEST, error) from error
        if manifest.version > VERSION:
            raise self._refused(f"a newer q36eval wrote it (version {manifest.version}); upgrade q36eval")
        if manifest.version < VERSION:
            raise self._refused(f"an older q36eval wrote it (version {manifest.version}); export the runs again")
        if len(set(manifest.runs)) < len(manifest.runs) or not all(map(RUN_ID.fullmatch, manifest.runs)):
            raise self._refused("it names a run twice, or as no run can be called")
        return manifest

    def _check_claims(self) -> None:
        """What the directory of the file says, before anything is unpacked."""
        infos = self._zip.infolist()
        if any(info.compress_type not in _PACKED for info in infos):
            raise self._refused("no export packs files in that way")
        most = UNPACKED_BYTES + UNPACKED_RATIO * self.file.stat().st_size
        claimed = sum(info.file_size for info in infos)
        if claimed > most:
            raise self._refused(f"it unpacks to {claimed:,} bytes, more than any export of its size ({most:,})")

    def _one(self, name: str, kind: type[Any]) -> Any:
        records = list(islice(self._records(name, kind), 10))
        if len(records) != 1:
            raise self._refused(f"{name} holds {len(records)} records instead of one")
        return records[0]

    def _records(self, name: str, kind: type[Any]) -> Iterator[Any]:
        for number, line in enumerate(self._lines(name), 1):
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                raise self._unreadable(f"{name}, line {number}", error) from error

    def _lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, of which no more than one is in memory."""
        waiting = bytearray()
        for part in self._parts(name):
            *whole, rest = part.split(b"\n")
            for line in whole:
                yield bytes(waiting + line)
                waiting.clear()
            waiting += rest
        if waiting:
            yield bytes(waiting)

    def _parts(self, name: str) -> Iterator[bytes]:
        """A file's content; its checksum is compared each time: the archive may have changed meanwhile."""
        try:
            with self._zip.open(name) as source:
                while part := source.read(CHUNK_BYTES):
                    yield part
        except (*_BROKEN, OSError) as error:
            raise self._refused(f"{name} is damaged ({error})") from error

    def _unreadable(self, where: str, error: ValidationError) -> UsageError:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        message = first["msg"].splitlines()[0].rstrip(".")
        return self._refused(
            f"{where} cannot be read (at {place}: {message}); a newer version wrote it, or it was edited"
        )

    def _refused(self, why: str) -> UsageError:
        return UsageError("archive-invalid", f"The archive {self.file} cannot be imported: {why}.")


@contextmanager
def reading(file: Path) -> Iterator[Reader]:
    """An archive, checked as a whole before anything of it is used.

    Raises:
        UsageError: there is no such file, or it is none that can be imported.
    """
    if file.exists() and not file.is_file():  # a pipe would be waited for, for ever
        raise UsageError("file-not-regular", f"The archive {file} cannot be imported: it is no file.")
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
