"""Identity hashes move with what they stand for and with nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from q36eval.checkpoints import checkpoint_sha256


@pytest.fixture
def folder(bf16_folder: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(bf16_folder, tmp_path / "copy"))
    return copy


def test_one_changed_byte_changes_the_checkpoint_hash(folder: Path) -> None:
    before = checkpoint_sha256(folder)
    assert before == checkpoint_sha256(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(weights))
    assert checkpoint_sha256(folder) != before


def test_a_readme_does_not_change_the_checkpoint_hash_and_a_copy_has_the_same(folder: Path, tmp_path: Path) -> None:
    before = checkpoint_sha256(folder)
    (folder / "README.md").write_text("x")
    assert checkpoint_sha256(folder) == before
    assert checkpoint_sha256(shutil.copytree(folder, tmp_path / "under another name")) == before


def test_a_changed_configuration_changes_the_checkpoint_hash(folder: Path) -> None:
    before = checkpoint_sha256(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert checkpoint_sha256(folder) != before
