"""Whether the disk has room for a gate: said before it begins, since hours later it would only stop it."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from q36eval.config import Paths
from q36eval.errors import Q36Error, UsageError
from q36eval.records import ProbeName
from q36eval.references import captures_in
from q36eval.run.items import Work
from q36eval.run.material import corpus_of
from q36eval.run.pack import size_of, widths
from q36eval.run.plan import Scored
from q36eval.run.reference import Reference
from q36eval.run.request import Request

CROWDED = 0.95
"""The share of a file system, of its bytes or of its files, from which on a gate says so."""

LEAST_BYTES = 1 << 20
"""What any run writes into history."""

CHARACTERS_PER_TOKEN = 8
"""More than any text of ours has of any tokenizer's tokens: so many tokens there are at least."""


@dataclass(frozen=True)
class FileSystem:
    """What is left of the file system that `place` is on, or will be. Some count no files: `files` is then 0."""

    place: Path
    bytes: int
    free_bytes: int
    files: int
    free_files: int

    @property
    def used(self) -> float:
        """The greater of the shares of bytes and of files that are taken."""
        return max(1 - self.free_bytes / self.bytes if self.bytes else 0.0, self.files_used)

    @property
    def files_used(self) -> float:
        """The share of files."""
        return 1 - self.free_files / self.files if self.files else 0.0

    @property
    def words(self) -> str:
        """`97 % full (1.20 GB are free)`, with the files where those are what is short."""
        files = f" and {self.free_files:,} files" if self.files_used >= CROWDED else ""
        # rounded down: what is not full does not read as if it were
        return f"{int(100 * self.used)} % full ({amount(self.free_bytes)}{files} are free)"


def amount(size: int) -> str:
    """Bytes as a person reads them: `5 MB`, `1.20 GB`."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{max(size, 0) / 1e6:,.0f} MB"


def file_system(place: Path) -> FileSystem:
    """That of `place`, or of the nearest folder above it that exists."""
    there = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
    usage, files = shutil.disk_usage(there), os.statvfs(there)
    # what is kept for root is no one's to use: as `df` counts it
    return FileSystem(place, usage.used + usage.free, usage.free, files.f_files, files.f_favail)


def crowded(places: Iterable[Path]) -> list[str]:
    """A sentence about each file system that is nearly full.

    Raises:
        UsageError: one has no room for any run.
    """
    sentences: dict[tuple[int, int], str] = {}
    for place in places:
        found = file_system(place)
        if found.free_bytes < LEAST_BYTES or (found.files and found.free_files == 0):
            raise UsageError(
                "disk-insufficient", f"The disk of {place} is {found.words}, too full to gate on; make room first."
            )
        if found.used >= CROWDED:
            sentence = f"The disk of {place} is {found.words}; a gate that meets its end stops there, and is resumed."
            sentences.setdefault((found.bytes, found.files), sentence)
    return list(sentences.values())


def refuse_uncapturable(request: Request, reference: Reference, scored: Scored, paths: Paths) -> None:
    """Refuse a capture that surely has not room, by the least it can take, before the reference is asked anything.

    Raises:
        UsageError: it has not room; the figures are named.
    """
    if reference.load is None or reference.folder is None or ProbeName.KL not in request.probes:
        return
    try:
        captures = captures_in(reference.root)
        if any(header.probe == ProbeName.KL and manifest is not None for _, header, manifest in captures):
            return
        hidden, vocabulary = widths(reference.folder)
        characters = sum(len(document.text) for document in corpus_of(scored.suite, scored.corpus, paths)[1])
    except Q36Error:  # it is said where it is used
        return
    least = 2 * hidden * (characters // CHARACTERS_PER_TOKEN + (vocabulary if request.top_k is None else 0))
    _refuse(least - _size_in(reference.root), reference.root, "at least ")


def refuse_uncaptured(works: Sequence[Work], reference: Reference) -> None:
    """Refuse the rest of a capture that has not room, by what is planned.

    Raises:
        UsageError: as above.
    """
    if reference.load is None or reference.folder is None:
        return
    captures = {work.probe.name: reference.open(work.probe) for work in works}
    unfinished = [work for work in works if captures[work.probe.name].manifest is None and work.probe.kind != "answers"]
    if unfinished:
        hidden, vocabulary = widths(reference.folder)
        planned = sum(size_of(work, hidden, vocabulary, keep_head=True).total for work in unfinished)
        present = sum(_size_in(captures[work.probe.name].folder) for work in unfinished)
        _refuse(planned - present, reference.root, "")


def _refuse(missing: int, place: Path, at_least: str) -> None:
    free = file_system(place).free_bytes
    if missing > free:
        raise UsageError(
            "disk-insufficient",
            f"Capturing the reference takes {at_least}{amount(missing)} more in {place}, where {amount(free)} are "
            f"free; make room, or name another state folder with --state.",
        )


def _size_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
