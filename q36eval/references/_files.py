"""Atomic file writes, and names that cannot leave their folder."""

import hashlib
from pathlib import Path, PurePosixPath

from q36eval.errors import UsageError
from q36eval.files import TEMPORARY, write_atomically


def write_whole(path: Path, payload: bytes) -> None:
    """Write a file atomically: complete or not at all, even if this process or the machine dies.

    Raises:
        UsageError: the folder is not writable, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, payload, durable=True, follow_links=False)  # packs come from elsewhere
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> UsageError:
    """One sentence for a read-only folder, a full disk, and the like."""
    return UsageError(
        "file-unwritable",
        f"{path} cannot be written ({error.strerror or error}); name a folder that can be, or make room: "
        f"a capture goes on where it stopped.",
    )


def remove_temporaries(folder: Path) -> None:
    """Remove incomplete files of a killed writer."""
    for path in [*folder.glob(f"*{TEMPORARY}"), *folder.glob(f"items/*{TEMPORARY}")]:
        path.unlink(missing_ok=True)


def inside(folder: Path, name: str) -> Path:
    """The file `name` of `folder`.

    Raises:
        UsageError: the path would leave the folder, by its name or through a link.
    """
    plain = PurePosixPath(name)
    harmless = bool(plain.parts) and not plain.is_absolute() and ".." not in plain.parts and "\\" not in name
    path = folder / plain
    if not harmless or not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            "path-outside-folder", f"{folder} lists {name!r}, a file outside its folder; do not use that pack."
        )
    return path


def sha256_of(payload: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()
