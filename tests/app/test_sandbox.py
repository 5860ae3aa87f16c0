"""The shipped sandbox: every branch is intact, complete, what its recipe says, and the same bytes when built again."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from q36eval.app import sandbox as branches
from q36eval.app.sandbox import read_raw
from q36eval.checkpoints import checkpoint_sha256, load_model, tokenizer_sha256
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises
from tests.stored_formats import formats_of

SANDBOX = branches.SANDBOX_DIR
IDS = torch.arange(96).reshape(1, 96)


def quantized_matrices(name: str) -> dict[str, int]:
    """Quantized matrices per class of tensor that the branch's recipe asks for, from the shape of the reference."""
    config = json.loads((SANDBOX / "bf16" / "config.json").read_text())
    kinds = config["layer_types"]
    per_layer = 3 * config["num_experts"]
    experts, attention = per_layer * len(kinds), 4 * kinds.count("full_attention")
    inner = {"routed experts": experts, "shared expert": 3 * len(kinds), "self-attention": attention}
    middle = kinds[2:-1]
    return {
        "bf16": {},
        "main": inner,
        "fp8-head": inner | {"lm_head": 1},
        "fp8-head-embed": inner | {"lm_head": 1, "embeddings": 1},
        "w4a16": {
            "routed experts": per_layer * len(middle),
            "self-attention": 4 * middle.count("full_attention"),
        },
        "nvfp4-mixed": inner | {"lm_head": 1, "linear attention": 3 * kinds.count("linear_attention")},
    }.get(name, {"routed experts": experts})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.mark.long
@pytest.mark.parametrize("name", branches.NAMES)
def test_every_branch_loads_with_exactly_its_recipe_quantized(name: str, built: Path) -> None:
    """What the recipe leaves alone is the reference byte for byte."""
    folder = branches.build(name, SANDBOX, built)
    loaded = load_model(folder)
    quantized = {
        tensor_class: sum(count for layout, count in formats.items() if layout != "plain")
        for tensor_class, formats in formats_of(folder).items()
    }
    assert {tensor_class: count for tensor_class, count in quantized.items() if count} == quantized_matrices(name)
    assert tokenizer_sha256(folder) == tokenizer_sha256(SANDBOX / "bf16")
    assert torch.isfinite(loaded.model(input_ids=IDS).logits).all()
    reference, tensors = read_raw(SANDBOX / "bf16"), read_raw(folder)
    plain = [tensor for tensor in reference if tensor in tensors and tensors[tensor].dtype == "BF16"]
    assert len(plain) == len(reference) - sum(quantized_matrices(name).values())
    assert all(tensors[tensor] == reference[tensor] for tensor in plain)


def test_building_again_gives_the_same_bytes_and_a_damaged_build_is_replaced(tmp_path: Path) -> None:
    first = checkpoint_sha256(branches.build("int2-experts", SANDBOX, tmp_path))
    (tmp_path / "int2-experts" / "config.json").write_text("{}")
    assert checkpoint_sha256(branches.build("int2-experts", SANDBOX, tmp_path)) == first


def test_damage_to_committed_files_is_found(tmp_path: Path) -> None:
    assert branches.verify(SANDBOX) == [], "they are those of the manifest"
    for part in ("bf16", "fp8-head", "overlays", "manifest.json"):
        source = SANDBOX / part
        shutil.copytree(source, tmp_path / part) if source.is_dir() else shutil.copyfile(source, tmp_path / part)
    weights = bytearray((tmp_path / "fp8-head" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "fp8-head" / "model.safetensors").write_bytes(bytes(weights))
    assert any("fp8-head/model.safetensors differs" in problem for problem in branches.verify(tmp_path))
    with raises(CorruptCheckpointError, "sandbox-damaged", "fp8-head/model.safetensors"):
        branches.build("fp8-head", tmp_path)


def test_an_empty_folder_is_no_branch(tmp_path: Path) -> None:
    """A checkout may leave one behind where a branch has become an overlay."""
    (tmp_path / "w4a16").mkdir()
    (tmp_path / "overlays" / "w4a16").mkdir(parents=True)
    assert branches.kind_of("w4a16", tmp_path) == "overlay"
