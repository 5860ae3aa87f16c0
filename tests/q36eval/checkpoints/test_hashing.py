"""Identity hashes move with what they stand for and with nothing else."""

import shutil
from pathlib import Path

import pytest

from q36eval.checkpoints import checkpoint_sha256

from .inspection.damage import edit_json


@pytest.fixture
def folder(bf16_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bf16_folder, tmp_path / "copy"))


def test_one_changed_byte_or_entry_changes_the_checkpoint_hash(folder: Path) -> None:
    before = checkpoint_sha256(folder)
    assert before == checkpoint_sha256(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(weights))
    edited = checkpoint_sha256(folder)
    edit_json(folder, "config.json", lambda config: config.update(rms_norm_eps=1e-5))
    assert len({before, edited, checkpoint_sha256(folder)}) == 3


def test_a_readme_does_not_change_the_checkpoint_hash_and_a_copy_has_the_same(folder: Path, tmp_path: Path) -> None:
    before = checkpoint_sha256(folder)
    (folder / "README.md").write_text("x")
    assert checkpoint_sha256(folder) == before
    assert checkpoint_sha256(shutil.copytree(folder, tmp_path / "under another name")) == before
