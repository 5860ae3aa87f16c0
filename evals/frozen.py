"""Frozen data: JSON Lines files under a folder with a SHA-256 manifest, written once and checked before every use."""

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from q36eval.errors import UsageError
from q36eval.files import json_sha256

MANIFEST = "manifest.json"
LONGEST = "longest"
"""The manifest key for the longest of RULER's lengths in tokens, if it has fewer than its suite."""


class FrozenFile(BaseModel):
    """One file of a frozen folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    lines: int = Field(ge=0)


class Source(BaseModel):
    """The origin of frozen rows: a split of a dataset at one commit. `features` is its schema."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # earlier data also has its rows' hash

    repository: str
    config: str | None = None
    split: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    licence: str
    rows: int = Field(ge=0)
    features: dict[str, Any] = Field(default_factory=dict)


class FrozenTask(BaseModel):
    """A task of lm-eval: its file below lm-eval's `tasks`, and the frozen files of each split it reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: str
    data: dict[str, tuple[str, ...]]
    features: dict[str, Any] = Field(default_factory=dict)


class Manifest(BaseModel):
    """The content of a frozen folder and its origin; `files` maps relative POSIX paths."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # as for its sources

    name: str
    seed: int
    made_from: dict[str, str] = Field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    tasks: dict[str, tuple[FrozenTask, ...]] = Field(default_factory=dict)
    """Group of a suite -> its tasks by lm-eval's names."""
    files: dict[str, FrozenFile]

    @property
    def sha256(self) -> str:
        """Content hash of all files, including their names and the tasks' use of them."""
        listed: list[Any] = sorted((path, entry.sha256) for path, entry in self.files.items())
        if self.tasks:
            listed.append(self.model_dump(mode="json", include={"tasks"}))
        return json_sha256(listed)


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of `folder`, with set fields only."""
    text = manifest.model_dump_json(indent=2, exclude_unset=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return manifest


def frozen_files(folder: Path) -> dict[str, FrozenFile]:
    """Every file below `folder` but the manifest, with its hash, by relative path in order."""
    names = sorted(path.relative_to(folder).as_posix() for path in _present(folder))
    return {relative: _entry(folder / relative) for relative in names}


def _entry(path: Path) -> FrozenFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    return FrozenFile(sha256=digest, lines=lines)


def _present(folder: Path) -> list[Path]:
    """The files of a frozen folder; hidden files of a system or an editor are ignored."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a frozen folder.

    Raises:
        UsageError: it does not exist or cannot be read.
    """
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            "frozen-data-incomplete", f"{folder} has no {MANIFEST}: the data is incomplete, check it out again."
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise UsageError(
            "frozen-manifest-malformed", f"{path} is not a manifest of frozen data: {str(error).splitlines()[0]}."
        ) from error
    tasks = [task for of_group in manifest.tasks.values() for task in of_group]
    for relative in (*manifest.files, *(task.config for task in tasks)):
        if Path(relative).is_absolute() or ".." in Path(relative).parts:
            raise UsageError(
                "path-outside-folder",
                f"{path} lists {relative!r}, which is outside its folder; freeze the data again.",
            )
    for task in tasks:
        if unlisted := {file for files in task.data.values() for file in files} - set(manifest.files):
            raise UsageError(
                "frozen-data-unlisted",
                f"{path} lets {task.name} read {min(unlisted)!r}, which it does not list; freeze the data again.",
            )
    return manifest


def verify(folder: Path) -> Manifest:
    """Check that the folder matches its manifest exactly.

    Raises:
        UsageError: a file is missing, changed, or not listed; it is named.
    """
    manifest = read_manifest(folder)
    for relative, entry in manifest.files.items():
        path = folder / relative
        if not path.is_file():
            raise UsageError(
                "frozen-data-incomplete",
                f"{path} is missing though {MANIFEST} lists it; restore it or freeze the data again.",
            )
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise UsageError(
                    "frozen-data-damaged",
                    f"{path} differs from its hash in {MANIFEST}; restore it or freeze the data again.",
                )
    present = {path.relative_to(folder).as_posix() for path in _present(folder)}
    if extra := sorted(present - set(manifest.files)):
        raise UsageError(
            "frozen-data-unlisted",
            f"{folder / extra[0]} is not listed in {MANIFEST}; remove it or freeze the data again.",
        )
    return manifest
