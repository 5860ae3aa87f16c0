"""Identity hashes move with what they stand for and with nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, tokenizer_sha256
from q36eval.errors import UsageError


@pytest.fixture
def folder(bf16_folder: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(bf16_folder, tmp_path / "copy"))
    (copy / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "truncation": None}))
    (copy / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": "A"}))
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


def test_tokenizer_hash_ignores_formatting_and_calibration_settings_but_not_the_vocabulary(folder: Path) -> None:
    before = tokenizer_sha256(folder)
    document = {"truncation": {"max_length": 512}, "model": {"vocab": {"a": 0}}}
    (folder / "tokenizer.json").write_text(json.dumps(document, indent=4))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}, "chat_template": "B"}))
    assert tokenizer_sha256(folder) == before
    document["model"] = {"vocab": {"b": 0}}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    assert tokenizer_sha256(folder) != before


def test_template_file_stands_for_the_template_wherever_it_is_kept(folder: Path) -> None:
    inside = chat_template_sha256(folder)
    (folder / "chat_template.jinja").write_text("A")
    assert chat_template_sha256(folder) == inside
    (folder / "chat_template.jinja").write_text("B")
    assert chat_template_sha256(folder) != inside


def test_folder_without_tokenizer_is_a_usage_error(bf16_folder: Path) -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        tokenizer_sha256(bf16_folder)


def test_a_changed_configuration_changes_the_checkpoint_hash(folder: Path) -> None:
    before = checkpoint_sha256(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert checkpoint_sha256(folder) != before


def test_numbers_that_json_does_not_have_have_a_hash_too(tmp_path: Path) -> None:
    """Python reads and writes them: scores of a tokenizer may be infinite, and a checkpoint says what it likes."""
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [["<unk>", -Infinity], ["a", NaN]]}}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default", "weight": NaN}]}')
    first = tokenizer_sha256(tmp_path), chat_template_sha256(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [["<unk>", 0.0], ["a", NaN]]}}')
    assert tokenizer_sha256(tmp_path) != first[0]
    assert [len(sha256) for sha256 in first] == [64, 64]
