"""The complete folders of sandbox branches that are committed as overlays: built once a process, gone at its end."""

import tempfile
from functools import cache
from pathlib import Path

from q36eval.app import sandbox

_BUILT = tempfile.TemporaryDirectory(prefix="q36eval-branches-")


@cache
def folder_of(name: str) -> Path:
    """Not to be written to."""
    return sandbox.build(name, build_dir=Path(_BUILT.name))
