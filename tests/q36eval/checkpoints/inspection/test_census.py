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


def copy_with(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(SANDBOX / "fp8-head", folder)
    edit_json(folder, "config.json", change)
    return folder


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


def test_names_in_the_configuration_are_of_no_matter(tmp_path: Path) -> None:
    def renamed(config: dict[str, Any]) -> None:
        groups = config["quantization_config"]["config_groups"]
        config["quantization_config"]["config_groups"] = {f"W4A16_{name}": group for name, group in groups.items()}
        config["_name_or_path"] = config["scheme"] = "W4A16"

    assert census(copy_with(tmp_path / "renamed", renamed)) == census(SANDBOX / "fp8-head")


def test_weights_alone_are_another_scheme_than_weights_and_inputs(tmp_path: Path) -> None:
    def weight_only(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["input_activations"] = None

    assert census(copy_with(tmp_path / "w4a16", weight_only)) == {"FP8_BLOCK_A16": 1, "NVFP4_A16": 134}


def test_a_declared_kind_of_weights_is_not_believed(tmp_path: Path) -> None:
    """Declared as integers of four bits, stored as FP8 in blocks: what is stored counts."""

    def declared(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_1"]["weights"] |= {"num_bits": 8, "type": "int"}

    assert "FP8_BLOCK" in (census(copy_with(tmp_path / "declared", declared)) or {})


def test_a_scheme_that_nobody_can_tell_leaves_no_census(tmp_path: Path) -> None:
    """The inputs' quantization is of a kind that is not emulated."""

    def unknown(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"]["input_activations"] |= {"num_bits": 8}

    assert census(copy_with(tmp_path / "unknown", unknown)) is None
