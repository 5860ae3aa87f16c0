"""Data that benchmarks write: JSON Lines with the manifest that a run verifies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from q36eval.evals.frozen import MANIFEST, Manifest, frozen_files, read_manifest, write_manifest
from q36eval.files import canonical_json


def write_frozen(
    folder: Path,
    name: str,
    seed: int,
    files: Mapping[str, Sequence[Mapping[str, Any]]],
    made_from: Mapping[str, str],
) -> Manifest:
    """Write `files` (relative path -> records), then the manifest; files of an older manifest go."""
    for relative in read_manifest(folder).files if (folder / MANIFEST).exists() else ():
        (folder / relative).unlink(missing_ok=True)
    for relative, records in files.items():
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(canonical_json(record, ascii_only=False) + "\n" for record in records)
        (folder / relative).write_text(lines, encoding="utf-8")
    manifest = Manifest(name=name, seed=seed, made_from=dict(made_from), files=frozen_files(folder))
    return write_manifest(folder, manifest)
