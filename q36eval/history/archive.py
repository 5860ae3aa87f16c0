"""An archive of runs: one ZIP file that holds them whole. What is read of it is checked, and nothing is extracted.

It is read line by line, and how much it may claim is limited (`Limits`), so that a small file that unpacks to gigabytes
is refused before they are read.

    manifest.json                     format, version, each other file's SHA-256 and size, the runs
    runs/RUN/run.json                 the run as it was begun, measured and decided
    runs/RUN/measurements.jsonl       with the evidence per cluster
    runs/RUN/items.jsonl              every item's outcome
    runs/RUN/about.json               failures, earlier decisions, events, files
    artifacts/SHA256                  files of runs by their content

The same runs give the same bytes.
"""

import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

PARTS = ("run.json", "measurements.jsonl", "items.jsonl", "about.json")
_OWN = re.compile(rf"runs/{RUN_ID.pattern}/({'|'.join(map(re.escape, PARTS))})|artifacts/[0-9a-f]{{64}}")
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, NotImplementedError, ValueError)
"""What the zip library raises of a file that is damaged or encrypted."""


@dataclass(frozen=True)
class Limits:
    """What an archive may claim; an export beyond it is not written.

    A run of the sandbox takes 3 MB of measurements and 5 MB of items, packed six times as small, in lines of 150 kB at
    most; one of a 35B branch about ten times that.
    """

    line_bytes: int = 16 << 20
    unpacked_bytes: int = 64 << 20
    """Of all that is packed, and beyond that `ratio` times what the file takes."""
    ratio: int = 100


LIMITS = Limits()

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How an export packs. Other ways fail with errors of their own, and may claim gigabytes for a dictionary."""


class Entry(Record):
    """A file of the archive."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


class Manifest(Record):
    """What an archive holds; written last."""

    format: Literal["q36eval-history"]
    version: int
    runs: tuple[str, ...]
    files: dict[str, Entry]


VERSION = 2


class Writer:
    """Writes an archive; nothing is in its place before all of it is."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip, self._files, self._runs = archive, dict[str, Entry](), list[str]()

    def add_run(self, whole: WholeRun) -> None:
        """Add a run; its files are added by their own."""
        folder = f"runs/{whole.run.id}"
        self._runs.append(whole.run.id)
        self._add(f"{folder}/run.json", [_line(whole.run)])
        self._add(f"{folder}/measurements.jsonl", map(_line, whole.measurements))
        self._add(f"{folder}/items.jsonl", map(_line, whole.items))
        self._add(f"{folder}/about.json", [_line(whole.about)])

    def add_artifact(self, sha256: str, file: Path) -> None:
        """Add a file by its content, once.

        Raises:
            UsageError: its content is not what its name says.
        """
        name = f"artifacts/{sha256}"
        if name in self._files:
            return
        with file.open("rb") as source:
            self._add(name, iter(lambda: source.read(CHUNK_BYTES), b""), zipfile.ZIP_STORED)
        if self._files[name].sha256 != sha256:
            raise UsageError(
                "artifact-damaged", f"The file {file} is damaged: its content is not what its name says; remove it."
            )

    def finish(self) -> None:
        """Write the manifest."""
        manifest = Manifest(format="q36eval-history", version=VERSION, runs=tuple(self._runs), files=self._files)
        self._add(MANIFEST, [_line(manifest)])

    def _add(self, name: str, parts: Iterator[bytes] | list[bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
        info = zipfile.ZipInfo(name, MOMENT)
        info.compress_type, info.external_attr = how, 0o644 << 16
        digest, size = hashlib.sha256(), 0
        with self._zip.open(info, "w", force_zip64=True) as target:
            for part in parts:
                if how == zipfile.ZIP_DEFLATED and len(part) > LIMITS.line_bytes:
                    raise UsageError(
                        "archive-too-large",
                        f"{name} has a line of {len(part):,} bytes, more than `history import` reads.",
                    )
                digest.update(part)
                size += len(part)
                target.write(part)
        self._files[name] = Entry(sha256=digest.hexdigest(), size_bytes=size)


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
    """Reads an archive whose every file was held against the manifest."""

    def __init__(self, file: Path, archive: zipfile.ZipFile) -> None:
        """Check the manifest and all that it names.

        Raises:
            UsageError: it is no archive of ours, damaged, a newer version's, or claims more than any export does.
        """
        self.file, self._zip = file, archive
        self._check_claims()
        self.manifest = self._manifest()
        self._check_names()
        for name in self.manifest.files:
            if name.startswith("artifacts/") and name != f"artifacts/{self.manifest.files[name].sha256}":
                raise self._refused(f"{name} is of another content than its name says")
            for _ in self._parts(name):
                pass

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

    def artifact(self, sha256: str, target: IO[bytes]) -> bool:
        """Copy a file's content into `target`; whether the archive holds it."""
        name = f"artifacts/{sha256}"
        if name not in self.manifest.files:
            return False
        for part in self._parts(name):
            target.write(part)
        return True

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
        return manifest

    def _check_names(self) -> None:
        """Every file is one that an export writes, there once, and named by the manifest; every run is whole."""
        names, known = self._zip.namelist(), {MANIFEST, *self.manifest.files}
        ours = {name for name in names if name == MANIFEST or _OWN.fullmatch(name)}
        strange = [name for name in names if name not in known & ours]
        if strange or len(set(names)) < len(names):
            raise self._refused(f"no export writes a file {strange[0][:80]!r}" if strange else "it holds a file twice")
        whole = {f"runs/{run}/{part}" for run in self.manifest.runs for part in PARTS}
        lost = sorted((whole | known) - set(names))
        if len(set(self.manifest.runs)) < len(self.manifest.runs):
            raise self._refused("it names a run twice")
        if lost or any(name.startswith("runs/") and name not in whole for name in names):
            raise self._refused(f"it lacks {lost[0]}" if lost else "it holds a run that it does not name")

    def _check_claims(self) -> None:
        """What the directory of the file says, before anything is unpacked."""
        infos = self._zip.infolist()
        if any(info.compress_type not in _PACKED for info in infos):
            raise self._refused("no export packs files in that way")
        most = LIMITS.unpacked_bytes + LIMITS.ratio * self.file.stat().st_size
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
            if len(waiting) > LIMITS.line_bytes:
                raise self._refused(f"{name} has a line longer than any export's")
        if waiting:
            yield bytes(waiting)

    def _parts(self, name: str) -> Iterator[bytes]:
        """A file's content, held against the manifest whenever it is read: the archive may be changed meanwhile."""
        entry = None if name == MANIFEST else self.manifest.files[name]
        digest, size = hashlib.sha256(), 0
        try:
            with self._zip.open(name) as source:
                most = self._zip.getinfo(name).file_size
                while part := source.read(CHUNK_BYTES):
                    digest.update(part)
                    size += len(part)
                    if size > (most if entry is None else min(most, entry.size_bytes)):
                        break
                    yield part
        except (*_BROKEN, OSError) as error:
            raise self._refused(f"{name} is damaged ({error})") from error
        if entry is not None and (digest.hexdigest(), size) != (entry.sha256, entry.size_bytes):
            raise self._refused(f"{name} is not what the archive's manifest says")

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
