"""Content hashes of a checkpoint folder: what a deployment's identity is made of."""

import hashlib
from pathlib import Path
from typing import Any

from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.files import canonical_json


def file_sha256(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_sha256(document: Any) -> str:
    """SHA-256 of a JSON document, however it is written."""
    canonical = canonical_json(document, ascii_only=False, compact=True, non_finite=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def checkpoint_sha256(path: str | Path | HeldFolder) -> str:
    """Hash of everything that decides what the model computes: configuration files and safetensors, by name.

    Raises:
        UsageError: not a folder, or without config.json or safetensors.
        ChangedError: a file became shorter since it was opened.
    """
    folder = hold(path)
    return json_sha256(folder.sha256(folder.identity_files))
