"""The schemes of a checkpoint's weights: what is stored and computed, whatever the configuration calls it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints.architecture import Architecture
from q36eval.checkpoints.inspection.coverage import scheme_census
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.checkpoints.weights import index_weights
from tests.branches import folder_of

from .damage import SANDBOX, edit_json
from .tiny import GOLDEN


def census(folder: Path) -> dict[str, int] | None:
    checkpoint = open_checkpoint(folder)
    weights = index_weights(checkpoint).weights
    outline = Architecture.of(checkpoint).outline
    places = outline.places(list(weights)).of
    return scheme_census(weights.values(), {name: outline.shape_at(place) for name, place in places.items()})


@pytest.mark.parametrize(
    ("branch", "schemes"),
    [
        ("bf16", {}),
        ("main", {"NVFP4": 134}),
        ("fp8-head", {"FP8_BLOCK": 1, "NVFP4": 134}),
        ("nvfp4-modelopt", {"NVFP4": 108}),
        ("gptq-int4", {"W4A16": 108}),
    ],
)
def test_the_sandboxs_branches(branch: str, schemes: dict[str, int]) -> None:
    assert census(folder_of(branch)) == schemes


def test_what_auto_round_packed_as_awq() -> None:
    assert census(GOLDEN / "autoround-awq") == {"W4A16": 13}


def renamed(config: dict[str, Any]) -> None:
    groups = config["quantization_config"]["config_groups"]
    config["quantization_config"]["config_groups"] = {f"W4A16_{name}": group for name, group in groups.items()}
    config["_name_or_path"] = config["scheme"] = "W4A16"


def weight_only(config: dict[str, Any]) -> None:
    for group in config["quantization_config"]["config_groups"].values():
        group["input_activations"] = None


def declared_as_integers(config: dict[str, Any]) -> None:
    config["quantization_config"]["config_groups"]["group_1"]["weights"] |= {"num_bits": 8, "type": "int"}


def inputs_not_emulated(config: dict[str, Any]) -> None:
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] |= {"num_bits": 8}


@pytest.mark.parametrize(
    ("change", "schemes"),
    [
        (renamed, {"FP8_BLOCK": 1, "NVFP4": 134}),
        (weight_only, {"FP8_BLOCK_A16": 1, "NVFP4_A16": 134}),
        (declared_as_integers, {"FP8_BLOCK": 1, "NVFP4": 134}),
        (inputs_not_emulated, None),
    ],
)
def test_what_is_stored_counts_whatever_it_is_called(
    change: Callable[[dict[str, Any]], None], schemes: dict[str, int] | None, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(SANDBOX / "fp8-head", tmp_path / "copy"))
    edit_json(folder, "config.json", change)
    assert census(folder) == schemes
