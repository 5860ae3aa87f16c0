"""A folder is refused, with the tensor's name, unless every byte of its files belongs to exactly one tensor.

And from config.json alone: quantizations that are not decoded, and sizes that no model has.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints import header as header_module
from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

from .inspection.damage import ONE, TWO, WEIGHTS, Damage, edit_header, sharded, stray_file
from .test_schemes import DECLARED

NORM = "model.norm.weight"


shard = sharded(lambda folder, files: None)


def stored_in_both(folder: Path, files: dict[str, str]) -> None:
    for file in (ONE, TWO):
        save_file(load_file(folder / file) | {NORM: torch.zeros(128)}, folder / file)


def test_single_and_sharded_folders_hold_the_same_tensors(bf16_folder: Path, folder: Path) -> None:
    shard(folder)
    single, sharded = open_checkpoint(bf16_folder), open_checkpoint(folder)
    assert set(single.tensors) == set(sharded.tensors)
    assert len({entry.file for entry in sharded.tensors.values()}) == 2
    assert torch.equal(single.read(NORM), sharded.read(NORM))


def in_a_sidecar(*names: str) -> Callable[[Path, dict[str, str]], None]:
    return lambda folder, files: save_file({name: torch.zeros(2, 2) for name in names}, folder / "mtp.safetensors")


@pytest.mark.parametrize("name", ["model_mtp", "mtp", "model-mtp-of-00005", "model_extra_tensors"])
@pytest.mark.parametrize("index", [True, False])
def test_sidecars_outside_the_index_are_no_fault(folder: Path, name: str, index: bool) -> None:
    """A draft head is read whatever its file is called; what no model takes is left alone."""
    whole = open_checkpoint(folder).tensors
    if index:
        shard(folder)
    save_file({"mtp.fc.weight": torch.zeros(2, 2), "calibration.amax": torch.zeros(2)}, folder / f"{name}.safetensors")
    assert set(open_checkpoint(folder).tensors) == {*whole, "mtp.fc.weight"}


def test_a_draft_head_within_an_indexed_file_need_not_be_indexed(folder: Path) -> None:
    head = {"mtp.fc.weight": torch.zeros(2, 2)}
    sharded(lambda folder, files: save_file(load_file(folder / TWO) | head, folder / TWO))(folder)
    assert "mtp.fc.weight" in open_checkpoint(folder).tensors


def cut(count: int) -> Damage:
    """The file without its last bytes, or its first bytes alone where `count` is negative."""
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-count])


def header_with(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_header(folder, change)


def overlap(header: dict[str, Any]) -> None:
    header["model.embed_tokens.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"]


def name_twice(folder: Path) -> None:
    blob = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(blob[:8], "little")
    doubled = blob[8 : 8 + length].rstrip()[:-1] + b',"model.norm.weight":{},"lm_head.weight":{}}'
    (folder / WEIGHTS).write_bytes(len(doubled).to_bytes(8, "little") + doubled + blob[8 + length :])


@pytest.mark.parametrize(
    ("damage", "code", "values"),
    [
        (cut(1), "header-malformed", [WEIGHTS]),
        (cut(5000), "header-malformed", [WEIGHTS]),
        (cut(-100), "file-truncated", []),
        (header_with(overlap), "header-malformed", ["overlaps"]),
        (header_with(lambda header: header[NORM].update(dtype="F7")), "header-malformed", [NORM, "'F7'"]),
        (header_with(lambda header: header[NORM].update(shape=[3])), "header-malformed", [NORM]),
        (name_twice, "header-malformed", ["lm_head.weight"]),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes() + b"more"), "header-malformed", ["4 bytes"]),
        (sharded(stored_in_both), "tensor-duplicate", [NORM]),
        (sharded(lambda folder, files: files.pop(NORM)), "index-mismatch", [NORM]),
        (stray_file, "tensor-duplicate", ["extra.safetensors"]),
        (sharded(in_a_sidecar(NORM)), "tensor-duplicate", [NORM, "mtp.safetensors"]),
    ],
)
def test_files_whose_bytes_do_not_belong_to_one_tensor_each_are_refused(
    folder: Path, damage: Damage, code: str, values: list[str]
) -> None:
    damage(folder)
    with raises(CorruptCheckpointError, code, *values):
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


@pytest.mark.parametrize("missing", ["config.json", WEIGHTS, "model-00002-of-00002.safetensors"])
def test_missing_file_is_a_usage_error(folder: Path, missing: str) -> None:
    if missing not in ("config.json", WEIGHTS):
        shard(folder)
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=missing):
        open_checkpoint(folder)


def test_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with raises(UsageError, "folder-missing"):
        open_checkpoint(tmp_path / "nowhere")


UNDECODED: dict[str, dict[str, Any]] = DECLARED["undecoded"]


def configured(folder: Path, **settings: Any) -> Path:
    """A folder with a config.json and no weights: whatever needs them comes later."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | settings))
    return folder


@pytest.mark.parametrize("name", UNDECODED)
def test_a_quantization_that_is_not_decoded_is_refused_before_weights_are_looked_for(name: str, tmp_path: Path) -> None:
    folder = configured(tmp_path / "model", **UNDECODED[name])
    for refused in (load_model, inspect_checkpoint):
        with raises(UsageError, "scheme-unsupported", folder, f"by {name!r}", "compressed-tensors"):
            refused(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_routed_experts": 10**9},
        {"num_local_experts": 10**9},
        {"moe_num_experts": -1},
        {"num_local_experts": 2048, "num_hidden_layers": 2048},
        {"n_layer": 10**9},
        {"intermediate_size": 2**40},
        {"kv_lora_rank": "many"},
    ],
)
def test_sizes_that_no_model_has_are_refused_whatever_the_architecture_calls_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with raises(CorruptCheckpointError, "config-invalid", "experts" if len(settings) > 1 else next(iter(settings))):
        open_checkpoint(configured(tmp_path / "model", **settings))


def test_a_hybrid_without_experts_is_none_of_them(tmp_path: Path) -> None:
    with raises(UsageError, "file-missing"):
        open_checkpoint(configured(tmp_path / "model", num_local_experts=0, mamba_d_head="auto"))
