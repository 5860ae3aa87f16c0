"""A folder is refused, with the tensor's name, unless every byte of its files belongs to exactly one tensor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints import header as header_module
from q36eval.checkpoints import open_checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

NORM = "model.norm.weight"


@pytest.fixture
def folder(bf16_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bf16_folder, tmp_path / "copy"))


def shard(folder: Path, doubled: str | None = None) -> None:
    """Split `model.safetensors` in two with an index; `doubled` is stored in both."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, chosen in halves.items():
        kept = [*chosen, *([doubled] if doubled else [])]
        save_file({name: tensors[name] for name in kept}, folder / file)
    weight_map = {name: file for file, chosen in halves.items() for name in chosen}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def rewrite_header(folder: Path, change: Callable[[dict], None]) -> None:
    file = folder / "model.safetensors"
    blob = file.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + blob[8 + length :])


def test_single_and_sharded_folders_hold_the_same_tensors(bf16_folder: Path, folder: Path) -> None:
    shard(folder)
    single, sharded = open_checkpoint(bf16_folder), open_checkpoint(folder)
    assert set(single.tensors) == set(sharded.tensors)
    assert len({entry.file for entry in sharded.tensors.values()}) == 2
    assert torch.equal(single.read(NORM), sharded.read(NORM))


def test_mtp_file_is_read_beside_the_weights(folder: Path) -> None:
    save_file({"mtp.fc.weight": torch.zeros(2, 2)}, folder / "model_mtp.safetensors")
    assert "mtp.fc.weight" in open_checkpoint(folder).tensors


@pytest.mark.parametrize("cut", [1, 5000])
def test_truncated_file_is_refused_with_file_and_tensor(folder: Path, cut: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-cut])
    with raises(CorruptCheckpointError, "header-malformed", "model.safetensors"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("MAX_HEADER_BYTES", ("header-too-large", "allows 40")),
        ("MAX_TENSORS", ("header-too-large",)),
    ],
)
def test_a_header_beyond_all_measure_is_refused(
    folder: Path, limit: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_module, limit, 40 if limit == "MAX_HEADER_BYTES" else 3)
    with raises(CorruptCheckpointError, *expected):
        open_checkpoint(folder)


def test_file_cut_inside_its_header_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with raises(CorruptCheckpointError, "file-truncated"):
        open_checkpoint(folder)


def test_tensor_in_two_shards_is_refused_with_its_name(folder: Path) -> None:
    shard(folder, doubled=NORM)
    with raises(CorruptCheckpointError, "tensor-duplicate", NORM):
        open_checkpoint(folder)


def test_tensor_missing_from_the_index_is_refused(folder: Path) -> None:
    shard(folder)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    del document["weight_map"][NORM]
    index.write_text(json.dumps(document))
    with raises(CorruptCheckpointError, "index-mismatch", NORM):
        open_checkpoint(folder)


def test_missing_shard_is_a_usage_error(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with raises(UsageError, "file-missing", "model-00002-of-00002"):
        open_checkpoint(folder)


def test_stray_weight_file_is_refused(folder: Path) -> None:
    save_file({"x": torch.zeros(1)}, folder / "extra.safetensors")
    with raises(CorruptCheckpointError, "index-mismatch", "extra.safetensors"):
        open_checkpoint(folder)


def test_overlapping_tensors_are_refused(folder: Path) -> None:
    def overlap(header: dict) -> None:
        header["model.embed_tokens.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"]

    rewrite_header(folder, overlap)
    with raises(CorruptCheckpointError, "header-malformed", "overlaps"):
        open_checkpoint(folder)


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    rewrite_header(folder, lambda header: header[NORM].update(dtype="F7"))
    with raises(CorruptCheckpointError, "header-malformed", NORM, "'F7'"):
        open_checkpoint(folder)


def test_a_name_that_comes_twice_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    blob = file.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    doubled = blob[8 : 8 + length].rstrip()[:-1] + b',"model.norm.weight":{},"lm_head.weight":{}}'
    file.write_bytes(len(doubled).to_bytes(8, "little") + doubled + blob[8 + length :])
    with raises(CorruptCheckpointError, "header-malformed", "lm_head.weight"):
        open_checkpoint(folder)


def test_size_that_does_not_fit_the_shape_is_refused(folder: Path) -> None:
    def enlarge(header: dict) -> None:
        header[NORM]["shape"] = [3]

    rewrite_header(folder, enlarge)
    with raises(CorruptCheckpointError, "header-malformed", NORM):
        open_checkpoint(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_missing_file_is_a_usage_error(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=missing):
        open_checkpoint(folder)


def test_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with raises(UsageError, "folder-missing"):
        open_checkpoint(tmp_path / "nowhere")


def test_bytes_after_the_last_tensor_are_refused(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"more")
    with raises(CorruptCheckpointError, "header-malformed", "4 bytes"):
        open_checkpoint(folder)
