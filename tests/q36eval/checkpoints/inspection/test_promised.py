"""A card is held to what it promises; where none does, unusual coverage is told and judged by its KL."""

import shutil
from pathlib import Path

import pytest

from q36eval.app.targets import load_family
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.inspection import Finding, Promise, Severity, inspect_checkpoint
from q36eval.checkpoints.kv_cache import declared_kv_cache_dtype
from q36eval.config import Paths
from q36eval.run.weights import promises_of
from tests.branches import folder_of

from .damage import edit_json, quantized_linear_attention

REPOSITORY = Path(__file__).parents[4]
SANDBOX = REPOSITORY / "data" / "sandbox"
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
    family = load_family("sandbox", Paths.default())
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
