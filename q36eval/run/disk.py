"""The fill level of a disk, and whether a capture fits: reported before a gate begins, not hours later."""

import shutil
from dataclasses import dataclass
from pathlib import Path

CROWDED = 0.95
"""The used share of a file system above which a gate reports it."""

LEAST_BYTES = 1 << 20
"""The minimum that any run writes into history."""


@dataclass(frozen=True)
class FileSystem:
    """The size of a file system and its free space; `device` is its number in this system."""

    device: int
    bytes: int
    free_bytes: int

    @property
    def used(self) -> float:
        """The used share of bytes."""
        return 1 - self.free_bytes / self.bytes if self.bytes else 0.0

    @property
    def words(self) -> str:
        """`97 % full (1.20 GB are free)`."""
        # rounded down: a disk that is not full is not shown as full
        return f"{int(100 * self.used)} % full ({amount(self.free_bytes)} are free)"


def amount(size: int) -> str:
    """Bytes in readable form: `5 MB`, `1.20 GB`."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{max(size, 0) / 1e6:,.0f} MB"


def file_system(place: Path) -> FileSystem:
    """The file system of `place`, or of its nearest existing parent folder."""
    there = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
    usage = shutil.disk_usage(there)
    return FileSystem(
        there.stat().st_dev, usage.used + usage.free, usage.free
    )  # space reserved for root is excluded, as in `df`


def lacking_room(missing: int, place: Path) -> str | None:
    """Why a capture that takes `missing` more bytes does not fit below `place`; None if it fits."""
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
