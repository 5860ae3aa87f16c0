"""What is read and hashed of a checkpoint is of the files that were opened, and whatever happens to them is noticed."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from q36eval.checkpoints import checkpoint_sha256, load_tokenizer, open_checkpoint, open_files, tokenizer_sha256
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.errors import ChangedError, CorruptCheckpointError, EngineError, ExitCode
from tests.raising import failing, raises

from .inspection.damage import edit_json, flip

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"
WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"


def flip_keeping_times(file: Path) -> None:
    before = file.stat()
    flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    """Rename a file of other contents over it, as downloaders do."""
    copy = file.with_name("copy.tmp")
    shutil.copyfile(file, copy)
    flip(copy)
    copy.replace(file)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 8)


def another(file: Path) -> None:
    (file.parent / "model-00002-of-00002.safetensors").write_bytes(b"")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (flip, "was written to"),
    (flip_keeping_times, "was written to"),
    (os.utime, "or touched"),
    (replace, "was replaced"),
    (truncate, "was truncated"),
    (Path.unlink, "was removed"),
    (another, "came into the folder"),
]


@pytest.mark.parametrize(("change", "how"), CHANGES)
def test_a_changed_file_is_refused_and_is_nobodys_verdict(
    folder: Path, change: Callable[[Path], object], how: str
) -> None:
    opened = HeldFolder(folder)
    (folder / "README.md").write_text("what no model reads may change")
    opened.check()
    change(folder / WEIGHTS)
    with raises(ChangedError, "files-changed", how) as raised:
        opened.check()
    assert raised.value.exit_code is ExitCode.NOT_MEASURED


def test_one_changed_byte_or_entry_changes_the_checkpoint_hash_and_no_readme_or_name(
    folder: Path, tmp_path: Path
) -> None:
    before = checkpoint_sha256(folder)
    (folder / "README.md").write_text("x")
    assert checkpoint_sha256(shutil.copytree(folder, tmp_path / "under another name")) == before
    flip(folder / WEIGHTS)
    edited = checkpoint_sha256(folder)
    edit_json(folder, "config.json", lambda config: config.update(rms_norm_eps=1e-5))
    assert len({before, edited, checkpoint_sha256(folder)}) == 3


def test_a_file_renamed_over_another_never_mixes_with_it(folder: Path) -> None:
    opened = HeldFolder(folder)
    before = opened.files[WEIGHTS].read()
    checkpoint = open_checkpoint(opened)
    norm = checkpoint.read(NORM)
    replace(folder / WEIGHTS)
    assert opened.files[WEIGHTS].read() == before
    assert checkpoint.read(NORM).equal(norm)
    assert opened.files[WEIGHTS].sha256() == hashlib.sha256(before).hexdigest()


def test_what_a_change_makes_a_reader_raise_is_told_as_the_change(folder: Path) -> None:
    opened = HeldFolder(folder)
    checkpoint = open_checkpoint(opened)

    def read_all() -> None:
        with opened.being_read():
            truncate(folder / WEIGHTS)
            for name in checkpoint.tensors:
                checkpoint.read(name)

    with raises(ChangedError, "files-changed", "was truncated"):
        read_all()


def test_a_snapshot_of_the_hub_is_held_by_its_blobs(folder: Path, tmp_path: Path) -> None:
    for place in (snapshot := tmp_path / "snapshots" / "0123", blobs := tmp_path / "blobs"):
        place.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        (snapshot / file.name).symlink_to(shutil.copyfile(file, blobs / f"{number:040}"))
    opened = HeldFolder(snapshot)
    assert checkpoint_sha256(opened) == checkpoint_sha256(folder)
    replace(snapshot / WEIGHTS)
    with raises(ChangedError, "files-changed", "was replaced"):
        opened.check()


def test_a_text_is_no_other_file_of_this_machine(folder: Path, tmp_path: Path) -> None:
    base = shutil.copytree(folder, tmp_path / "base")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(base / "config.json")  # as where a branch shares its reference's files
    assert "config.json" in HeldFolder(folder)
    (folder / "chat_template.jinja").symlink_to("/etc/hostname")
    with raises(CorruptCheckpointError, "link-elsewhere", "chat_template.jinja"):
        HeldFolder(folder)


def test_a_folder_is_opened_once_within_a_measurement(folder: Path) -> None:
    assert hold(folder) is not hold(folder)
    with opened_once() as folders:
        first = hold(folder)
        with opened_once():
            assert hold(str(folder)) is first
        replace(folder / "config.json")
        assert open_checkpoint(folder).held is first
        with raises(ChangedError, "files-changed", "config.json"):
            folders.verify()
    assert hold(folder) is not first


def test_the_tokenizer_is_that_of_the_files_that_were_opened(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(SANDBOX / name, tmp_path / name)
    opened = HeldFolder(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / "another").write_text("{}")
        (tmp_path / "another").replace(tmp_path / name)
    assert tokenizer_sha256(opened) == tokenizer_sha256(SANDBOX)
    tokenizer = load_tokenizer(opened)
    assert tokenizer.chat_template == (SANDBOX / "chat_template.jinja").read_text()
    assert tokenizer.name_or_path == str(tmp_path)


def test_inspection_says_nothing_of_what_changed_under_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "q36eval.checkpoints.inspection.examination"

    def overwritten(*arguments: Any, **named: Any) -> Any:
        flip(folder / WEIGHTS)
        return []

    monkeypatch.setattr(f"{module}.activation_findings", overwritten)
    with raises(ChangedError, "files-changed"):
        inspect_checkpoint(folder)


def test_a_disk_that_gives_errors_is_no_fault_of_the_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_checkpoint(folder)
    monkeypatch.setattr(os, "preadv", failing(OSError(5, "Input/output error")))
    with raises(EngineError, "file-unreadable", "model.safetensors", "Input/output error"):
        opened.read(NORM)
    with raises(EngineError, "file-unreadable", "Input/output error"):
        inspect_checkpoint(folder)


def test_empty_files_and_large_ones_are_hashed_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "CHUNK_BYTES", 2**12)
    (folder / "merges.txt").write_bytes(b"")
    opened = HeldFolder(folder)
    for name in ("merges.txt", WEIGHTS):
        assert opened.files[name].sha256() == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    opened.check()


def test_a_disk_that_takes_no_copy_of_the_tokenizer_says_nothing_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with raises(EngineError, "file-unwritable", "No space left on device"):
        load_tokenizer(hold(SANDBOX))
