"""How full a disk is, and whether a capture fits: reported before a gate begins, not hours later."""

import shutil
from dataclasses import dataclass
from pathlib import Path

CROWDED = 0.95
"""The share of a file system from which on a gate reports it."""

LEAST_BYTES = 1 << 20
"""What any run writes into history."""


@dataclass(frozen=True)
class FileSystem:
    """The size of a file system, and what is left of it; `device` is its number in this system."""

    device: int
    bytes: int
    free_bytes: int

    @property
    def used(self) -> float:
        """The share of bytes that are taken."""
        return 1 - self.free_bytes / self.bytes if self.bytes else 0.0

    @property
    def words(self) -> str:
        """`97 % full (1.20 GB are free)`."""
        # rounded down: what is not full does not read as if it were
        return f"{int(100 * self.used)} % full ({amount(self.free_bytes)} are free)"


def amount(size: int) -> str:
    """Bytes as a person reads them: `5 MB`, `1.20 GB`."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{max(size, 0) / 1e6:,.0f} MB"


def file_system(place: Path) -> FileSystem:
    """That of `place`, or of the nearest folder above it that exists."""
    there = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
    usage = shutil.disk_usage(there)
    return FileSystem(
        there.stat().st_dev, usage.used + usage.free, usage.free
    )  # what is kept for root is left out, as `df` does


def lacking_room(missing: int, place: Path) -> str | None:
    """Why a capture that takes `missing` more bytes does not fit below `place`; None where it fits."""
    free = file_system(place).free_bytes
    if missing <= free:
        return None
    return (
        f"Capturing the reference takes {amount(missing)} more in {place}, where {amount(free)} are free; "
        f"make room, or name another state folder with --state."
    )


def size_in(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
