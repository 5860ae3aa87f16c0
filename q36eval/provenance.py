"""With which code and packages a run was made."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

PACKAGES = ("q36eval", "torch", "transformers", "compressed-tensors", "safetensors", "tokenizers", "lm-eval", "numpy")
CHANGED = "changed"
"""Where a run's provenance says that a checkpoint changed under it: what it measured may be of two."""
OPTIONS = "options"
"""Where a run's provenance keeps the gate's options, by the parameter's name. They may hold paths of this machine, so
that no report shows them."""
STORED = "stored_weights"
"""Where a run's provenance keeps the size of the branch's weights: `bytes`, with scales, and `values`, the numbers."""
OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""What git hands to a hook: with these it would tell of the repository that the hook is run for."""


def provenance(repository: Path) -> dict[str, Any]:
    """Package versions, Python, machine, git commit and whether the work tree had changes (None where unknown)."""
    commit, dirty = code_commit(repository)
    return {
        "packages": {name: version_of(name) for name in PACKAGES},
        "python": sys.version.split()[0],
        "machine": f"{platform.system()} {platform.machine()}",
        "git_commit": commit,
        "git_dirty": dirty,
    }


def code_commit(repository: Path) -> tuple[str | None, bool | None]:
    """The commit of this program's code, and whether it was changed since; None where that is not known.

    In a checkout git says both. An installed package lies in no repository of its own, whatever repository surrounds
    its environment: what pip wrote down of an installation from git counts (PEP 610), and nothing else.
    """
    top = _git(repository, "rev-parse", "--show-toplevel")
    if top is not None and Path(top).resolve() == repository.resolve():
        status = _git(repository, "status", "--porcelain")
        return _git(repository, "rev-parse", "HEAD"), None if status is None else bool(status)
    commit = (installed_from().get("vcs_info") or {}).get("commit_id")
    return (str(commit), False) if commit and not (repository / "pyproject.toml").is_file() else (None, None)


def installed_from() -> dict[str, Any]:
    """Where pip installed this program from, as PEP 610 has it (`direct_url.json`); empty where it did not say."""
    try:
        said = json.loads(distribution("q36eval").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError, OSError):
        return {}
    return said if isinstance(said, dict) else {}


def version_line() -> str:
    """The program's version in words: number, commit and Python."""
    commit, changed = code_commit(Path(__file__).resolve().parents[1])
    code = "" if commit is None else f"commit {commit[:12]}{', changed since' * bool(changed)}, "
    return f"q36eval {version_of('q36eval') or 'of unknown version'} ({code}Python {sys.version.split()[0]})"


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(repository: Path, *arguments: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
