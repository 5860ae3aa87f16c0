"""Copies of checkpoints to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.app.sandbox import build, kind_of
from tests.branches import folder_of

from . import tiny
from .damage import SANDBOX, Damage

Whole = Callable[[str], tuple[Path, Path]]
Copy = Callable[..., tuple[Path, Path]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the branch `main`."""
    return Path(shutil.copytree(folder_of("main"), tmp_path / "copy"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """(branch, reference) of a checkpoint by its name in the table; each written once."""
    folder = tmp_path_factory.mktemp("whole")

    def named(name: str) -> tuple[Path, Path]:
        if kind_of(name, SANDBOX) != "computed":
            return build(name, SANDBOX, folder / "built"), SANDBOX / "bf16"
        if not (folder / name).exists():
            tiny.write(name, folder / name)
        return folder / name / "branch", folder / name / "reference"

    return named


@pytest.fixture
def copy_of(whole: Whole, tmp_path: Path) -> Copy:
    """(a copy of a checkpoint with some damages, its reference)."""

    def copied(name: str, *damages: Damage) -> tuple[Path, Path]:
        branch, reference = whole(name)
        folder = Path(shutil.copytree(branch, tmp_path / "copy", dirs_exist_ok=True))
        if not (tmp_path / "reference").exists():
            (tmp_path / "reference").symlink_to(reference)
        for damage in damages:
            damage(folder)
        return folder, reference

    return copied
