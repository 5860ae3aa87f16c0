"""How much memory of this machine, and of this container, is left, and how freed memory is reused."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = {
    # by where a version's tree begins: limit, use, and which part of the use goes when it is asked for
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def reuse_freed_memory() -> None:
    """Let glibc reuse blocks of up to 128 MiB, if it can: mapping each anew took 18 % of SmolLM2's CPU time."""
    libc = _glibc()
    if libc is not None and libc.mallopt(-3, 128 << 20):  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def available_bytes(root: Path = Path("/")) -> int:
    """Host memory that is free or can be freed, no more than what limits on this process's groups leave of theirs.

    The limits are those of Linux's control groups, which containers, systemd and Slurm set: of the process's own group
    and of all above it. psutil does not know them. Freed blocks that this process kept for reuse count as free.
    """
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)
    return max(0, min([int(psutil.virtual_memory().available), *_left_by_limits(root)]))


def _left_by_limits(root: Path) -> Iterator[int]:
    for tree, group in _groups(root):
        limit, use, reclaimable = _CGROUPS[tree]
        begin = root / "sys/fs/cgroup" / tree
        own = begin / group
        # inside a container the group may be named as outside of it, where only the tree's beginning is seen
        for folder in [own, *(above for above in own.parents if above.is_relative_to(begin))]:
            try:
                most, taken = int((folder / limit).read_text()), int((folder / use).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - taken + int(stat.get(reclaimable, 0))
            except (OSError, ValueError):  # no limit ("max"), or no such folder
                continue


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """In which tree, and as what in it, this process stands: lines `id:controllers:/path`, 0 and none for version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number, controllers) == ("0", ""):
            yield "", path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield "memory", path.lstrip("/")
