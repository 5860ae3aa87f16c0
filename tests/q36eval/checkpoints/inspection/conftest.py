"""A copy of the sandbox's branch to damage."""

import shutil
from pathlib import Path

import pytest

from tests.branches import folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the branch `main`."""
    return Path(shutil.copytree(folder_of("main"), tmp_path / "copy"))
