"""A frozen folder of a test's own records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from q36eval.evals.frozen import Manifest, frozen_files, write_manifest
from q36eval.files import canonical_json


def write_frozen(folder: Path, files: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `files` (relative path -> records) as JSON Lines, and the manifest of all that is in the folder."""
    for relative, records in files.items():
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(canonical_json(record, ascii_only=False) + "\n" for record in records)
        (folder / relative).write_text(lines, encoding="utf-8")
    write_manifest(folder, Manifest(name="own", seed=0, files=frozen_files(folder)))
