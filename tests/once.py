"""What costs seconds to make and is only read afterwards: made once for all files and all worker processes."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder `name` of this session, filled by `build` in whichever process asks first; the others wait for it.

    Read it or copy it: it is shared. A `build` that raises leaves nothing behind, and the next that asks tries again.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = root / f"once-{name}", root / f"once-{name}.made"
    with (root / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            made.touch()
    return folder
