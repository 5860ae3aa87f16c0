"""A card is held to what it promises; where none does, unusual coverage is told and judged by its KL.

The schemes of weights are what is stored and computed, whatever the configuration calls it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.architecture import Architecture
from q36eval.checkpoints.inspection import Finding, Promise, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.coverage import scheme_census
from q36eval.checkpoints.kv_cache import declared_kv_cache_dtype
from q36eval.checkpoints.weights import index_weights
from q36eval.config import Paths
from q36eval.run.weights import promises_of
from tests.branches import folder_of

from .damage import SANDBOX, edit_json, quantized_linear_attention
from .tiny import GOLDEN

REPOSITORY = Path(__file__).parents[4]
KEPT = Promise(tensors="linear attention", stored="unquantized", source="the card")


def found(folder: Path, *promises: Promise) -> list[Finding]:
    inspection = inspect_checkpoint(folder, SANDBOX / "bf16", promises=promises)
    rules = ("not-as-promised", "usually-unquantized", "declared-twice")
    return [finding for finding in inspection.findings if finding.rule in rules]


@pytest.mark.long
def test_quantized_linear_attention_is_told_and_blocks_where_the_card_promises_otherwise(folder: Path) -> None:
    name = quantized_linear_attention(folder)
    (told,) = found(folder)
    assert (told.rule, told.severity) == ("usually-unquantized", Severity.ADVISORY)
    (broken,) = found(folder, KEPT)
    assert (broken.rule, broken.severity) == ("not-as-promised", Severity.BLOCKING)
    assert broken.subject == name
    assert found(folder, KEPT.model_copy(update={"tensors": name, "stored": "NVFP4"})) == [], "promised as it is"
    assert found(folder_of("main"), KEPT) == []


def test_a_promised_quantization_that_is_not_there_blocks() -> None:
    """An experts-only recipe that matched no expert exports nothing quantized, without an error."""
    promise = Promise(tensors="routed experts", stored="NVFP4", source="the card")
    assert found(folder_of("main"), promise) == []
    (broken,) = found(SANDBOX / "bf16", promise)
    assert (broken.rule, broken.severity) == ("not-as-promised", Severity.BLOCKING)


def test_every_branch_of_the_sandbox_keeps_its_promises_and_every_promise_names_what_there_is() -> None:
    experts = {"router gates", "routed experts", "shared expert"}
    known = experts | {"linear attention", "self-attention", "lm_head", "embeddings", "norms"}
    for file in sorted((REPOSITORY / "data" / "families").glob("*.yaml")):
        for branch in load_family(str(file), Paths.default()).branches.values():
            assert all(one.tensors in known or one.tensors.startswith("model.layers.") for one in branch.stores)
    family = load_family(None, Paths.default())
    promises = promises_of(family, "main")
    assert {promise.tensors for promise in promises} == {"linear attention", "router gates", "lm_head"}
    assert found(folder_of("main"), *promises) == []
    assert promises_of(family, "a folder") == ()


@pytest.mark.long
def test_a_cache_that_one_file_alone_names_is_told_and_judged(tmp_path: Path) -> None:
    """As in nvidia/Qwen3.6-35B-A3B-NVFP4: engines that read hf_quant_config.json serve it."""
    folder = Path(shutil.copytree(folder_of("nvfp4-modelopt"), tmp_path / "copy"))
    assert declared_kv_cache_dtype(open_checkpoint(folder)) == "auto"
    edit_json(folder, "hf_quant_config.json", lambda own: own["quantization"].update(kv_cache_quant_algo="FP8"))
    (told,) = found(folder)
    assert told.severity is Severity.ADVISORY
    assert declared_kv_cache_dtype(open_checkpoint(folder)) == "fp8_e4m3"
    edit_json(folder, "hf_quant_config.json", lambda own: own["quantization"].update(quant_algo="FP8"))
    assert [told.severity for told in found(folder)] == [Severity.BLOCKING, Severity.ADVISORY]


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
