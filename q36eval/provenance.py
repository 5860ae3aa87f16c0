"""With which code and packages a run was made."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("q36eval", "torch", "transformers", "compressed-tensors", "safetensors", "tokenizers", "lm-eval", "numpy")


def provenance(repository: Path) -> dict[str, Any]:
    """Package versions, Python, machine, git commit and whether the work tree had changes (None where unknown)."""
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": sys.version.split()[0],
        "machine": f"{platform.system()} {platform.machine()}",
        "git_commit": _git(repository, "rev-parse", "HEAD"),
        "git_dirty": None if (status := _git(repository, "status", "--porcelain")) is None else bool(status),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
