"""A card is held to what it promises; where none does, unusual coverage is judged by its KL.

The schemes of weights are what is stored and computed, whatever the configuration calls it. Vision tower and
multi-token head are compared with the reference's; synthetic ones, since the sandbox has none.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.app.targets import load_family
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.architecture import Architecture
from q36eval.checkpoints.inspection import Promise, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.coverage import scheme_census
from q36eval.checkpoints.inspection.declared_scheme import declared_findings, named_scheme
from q36eval.checkpoints.inspection.findings import Finding
from q36eval.checkpoints.kv_cache import declared_kv_cache_dtype
from q36eval.checkpoints.weights import index_weights
from q36eval.config import Paths
from q36eval.run.weights import measurements, promises_of
from tests.branches import folder_of

from .conftest import Copy, Whole
from .damage import OUTPUT, OWN_FILE, SANDBOX, Tensors, edit_json, edit_tensors, fused

REPOSITORY = Path(__file__).parents[4]
KEPT = Promise(tensors="linear attention", stored="unquantized", source="the card")


def found(folder: Path, *promises: Promise) -> list[Finding]:
    inspection = inspect_checkpoint(folder, SANDBOX / "bf16", promises=promises)
    return [finding for finding in inspection.findings if finding.rule in ("not-as-promised", "declared-twice")]


@pytest.mark.long
def test_quantized_linear_attention_blocks_where_the_card_promises_otherwise(folder: Path) -> None:
    """A DeltaNet projection as the neighbouring NVFP4 weight of the same shape, declared as such."""
    name = f"{OUTPUT}.weight"

    def quantize(tensors: Tensors) -> None:
        del tensors[name]
        donor = "model.layers.2.self_attn.o_proj."
        for part in [part for part in tensors if part.startswith(donor)]:
            tensors[part.replace(donor, f"{OUTPUT}.")] = tensors[part]

    def declare(document: dict[str, Any]) -> None:
        declared = document["quantization_config"]
        declared["ignore"].remove(OUTPUT)
        next(iter(declared["config_groups"].values()))["targets"].append(OUTPUT)

    edit_tensors(folder, quantize)
    edit_json(folder, "config.json", declare)
    assert found(folder) == [], "its KL judges that"
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


def census(folder: Path) -> dict[str, int] | None:
    checkpoint = open_checkpoint(folder)
    weights = index_weights(checkpoint).weights
    outline = Architecture.of(checkpoint).outline
    places = outline.places(list(weights)).of
    return scheme_census(weights.values(), {name: outline.shape_at(place) for name, place in places.items()})


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


def as_it_is(config: dict[str, Any]) -> None:
    """No change."""


@pytest.mark.parametrize(
    ("branch", "change", "schemes"),
    [
        ("bf16", as_it_is, {}),
        ("nvfp4-modelopt", as_it_is, {"NVFP4": 108}),
        ("gptq-int4", as_it_is, {"W4A16": 108}),
        ("fp8-head", renamed, {"FP8_BLOCK": 1, "NVFP4": 134}),
        ("fp8-head", weight_only, {"FP8_BLOCK_A16": 1, "NVFP4_A16": 134}),
        ("fp8-head", declared_as_integers, {"FP8_BLOCK": 1, "NVFP4": 134}),
        ("fp8-head", inputs_not_emulated, None),
    ],
)
def test_what_is_stored_counts_whatever_it_is_called(
    branch: str, change: Callable[[dict[str, Any]], None], schemes: dict[str, int] | None, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folder_of(branch), tmp_path / "copy"))
    edit_json(folder, "config.json", change)
    assert census(folder) == schemes


# -- vision tower and multi-token head

EXPERTS = "mtp.layers.0.mlp.experts"
HEAD = "mtp.fc.weight"
PATCH = "model.visual.patch_embed.proj.weight"
CARD = "the card"
BOTH = tuple(
    Promise(tensors=part, stored="unquantized", source=CARD) for part in ("multi-token prediction", "vision tower")
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def extras() -> Tensors:
    """What the reference has beside its text model, experts one by one."""
    whole = {"gate": random(2, 4, 16), "up": random(2, 4, 16) + 1, "down": random(2, 16, 4)}
    experts = {f"{EXPERTS}.{n}.{part}_proj.weight": whole[part][n] for n in range(2) for part in whole}
    return experts | {
        HEAD: random(16, 32),
        "mtp.norm.weight": random(16),
        PATCH: random(16, 3, 2, 2),
        "model.visual.blocks.0.norm1.bias": torch.zeros(16).bfloat16(),
    }


def one_by_one() -> Tensors:
    """As branches store them, in the other layout's names."""
    return {name.removeprefix("model."): tensor for name, tensor in extras().items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(SANDBOX / "bf16", tmp_path_factory.mktemp("reference") / "bf16"))
    edit_tensors(folder, lambda tensors: tensors.update(fused(extras())))
    return folder


@pytest.fixture
def branch(folder: Path) -> Path:
    edit_tensors(folder, lambda tensors: tensors.update(one_by_one()))
    return folder


def shipped(branch: Path, reference: Path | None, *promises: Promise) -> list[Finding]:
    inspection = inspect_checkpoint(branch, reference, promises=promises)
    ours = [finding for finding in inspection.findings if finding.rule.startswith("shipped-")]
    assert [finding for finding in inspection.blocking if finding not in ours] == []
    return ours


@pytest.mark.long
def test_the_same_numbers_are_no_finding_however_they_are_laid_out(branch: Path, reference: Path) -> None:
    assert shipped(branch, reference, *BOTH) == []
    wider = {name: tensor.float() for name, tensor in one_by_one().items()}
    edit_tensors(branch, lambda tensors: tensors.update(wider))
    assert shipped(branch, reference, *BOTH) == [], "the same numbers in another dtype"


def noise(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (torch.zeros_like, HEAD),
        (torch.neg, f"{EXPERTS}.1.up_proj.weight"),
        (noise, PATCH.removeprefix("model.")),
    ],
)
def test_other_numbers_are_a_finding_that_blocks_what_is_shipped(
    change: Callable[[torch.Tensor], torch.Tensor], name: str, branch: Path, reference: Path
) -> None:
    edit_tensors(branch, lambda tensors: tensors.update({name: change(tensors[name])}))
    (told,) = shipped(branch, reference)
    assert (told.section, told.rule, told.severity) == (Section.WEIGHTS, "shipped-differs", Severity.ADVISORY)
    assert told.subject == name
    (broken,) = shipped(branch, reference, *BOTH)
    assert (broken.subject, broken.severity) == (name, Severity.BLOCKING)
    counted = {one.metric: one.value for one in measurements(inspect_checkpoint(branch, reference, promises=BOTH))}
    assert counted["errors_beyond_scheme"] == 1


@pytest.mark.long
def test_what_is_shipped_is_there_and_whole(branch: Path, reference: Path) -> None:
    edit_tensors(branch, lambda tensors: [tensors.pop(name) for name in list(tensors) if f"{EXPERTS}.1." in name])
    (partly,) = shipped(branch, reference, *BOTH)
    assert (partly.rule, partly.section) == ("shipped-incomplete", Section.COVERAGE)
    assert partly.severity is Severity.BLOCKING
    edit_tensors(branch, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")])
    for against in (reference, None):
        (missing,) = shipped(branch, against, *BOTH)
        assert (missing.rule, missing.severity) == ("shipped-missing", Severity.BLOCKING)
    (told,) = shipped(branch, reference)
    assert (told.rule, told.severity) == ("shipped-missing", Severity.ADVISORY)
    assert shipped(branch, None) == []


@pytest.mark.long
def test_quantized_where_the_card_says_unquantized_blocks_and_is_told_elsewhere(branch: Path, reference: Path) -> None:
    def quantize(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[HEAD].to(torch.float8_e4m3fn)
        tensors["mtp.fc.weight_scale"] = torch.ones(1)

    edit_tensors(branch, quantize)
    (told,), (broken,) = shipped(branch, reference), shipped(branch, reference, *BOTH)
    assert (told.severity, broken.severity) == (Severity.ADVISORY, Severity.BLOCKING)
    assert broken.rule == told.rule == "shipped-quantized"
    said = Promise(tensors="multi-token prediction", stored="FP8", source=CARD)
    assert shipped(branch, reference, said) == []


def test_without_the_reference_a_matrix_of_zeros_is_found(branch: Path) -> None:
    assert shipped(branch, None, *BOTH) == [], "a bias may be zero"
    edit_tensors(branch, lambda tensors: tensors[HEAD].zero_())
    (finding,) = shipped(branch, None, *BOTH)
    assert (finding.rule, finding.subject) == ("shipped-zero", HEAD)


# -- the scheme that is declared, by a name or a person


KV_ALONE = {"quant_algo": None, "kv_cache_quant_algo": "FP8", "quantized_layers": {}}
"""What Model Optimizer exports where a recipe matched nothing (its pull request 2203)."""


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("inferRouter/Qwen3.6-35B-A3B-NVFP4@fp8-head", "NVFP4, fp8"),
        ("Qwen3-8B-FP8", "FP8"),
        ("model.w4a16-g128", "w4a16"),
        ("Mixtral-8x7B-Instruct-GPTQ", "GPTQ"),
        ("# Llama 3.1 8B in 4-bit", "4-bit"),
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("X-NVFP4A16", "NVFP4A16"),
        ("X-W4AFP8", "W4AFP8"),
        ("X-nf4-bnb", "nf4, bnb"),
        ("X-FP8-Dynamic", "FP8-Dynamic"),
        ("X-W4A8KV4", "W4A8KV4"),
        ("x in 4bits", "4bits"),
        ("gemma-3-4b-it-qat-int4-unquantized", None),
        ("X-mxfp4-dequantized", None),
        ("X-bf16-from-fp8", None),
        ("BF16", None),
        ("Qwen/Qwen3-8B", None),
        ("checkpoint-int8000", None),
        ("phi-4", None),
        ("internlm2-w8", None),
    ],
)
def test_schemes_are_read_from_names(text: str, scheme: str | None) -> None:
    assert named_scheme(text) == scheme


def by_rule(folder: Path, **given: object) -> dict[str, Severity]:
    found = inspect_checkpoint(folder, folder.parent / "reference", weights_workers=1, **given)  # type: ignore[arg-type]
    return {finding.rule: finding.severity for finding in found.findings}


@pytest.fixture
def plain(copy_of: Copy) -> Path:
    return copy_of("tiny-plain")[0]


@pytest.mark.parametrize("where", ["name", "option", "heading", "metadata"])
def test_nothing_quantized_is_blocked_where_a_scheme_is_declared(plain: Path, where: str) -> None:
    cards = {
        "heading": "# Tiny NVFP4\n\nText.",
        "metadata": "---\nbase_model_relation: quantized\n---\n# Tiny\n",
        "name": "---\ndate: 2024-13-45\n---\nMade with FP8 in mind.",
        "option": "---\n" + "[" * 5000 + "\n---\n",
    }
    (plain / "README.md").write_text(cards.get(where, ""))
    named = {"its name": "tiny-NVFP4" if where == "name" else "release"}
    rules = by_rule(plain, named=named, scheme="NVFP4" if where == "option" else None)
    assert rules["declared-scheme-absent"] is Severity.BLOCKING
    (plain / "README.md").unlink()
    assert "declared-scheme-absent" not in by_rule(plain, named={"its name": "release"})


def test_a_recipe_that_matched_nothing_and_left_a_quantized_cache_is_blocked_by_its_name(plain: Path) -> None:
    """The cache alone is what some releases mean; an empty list of layers is no such release."""
    (plain / OWN_FILE).write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": KV_ALONE}))
    assert by_rule(plain, named={"its name": "release"})["declared-scheme-absent"] is Severity.BLOCKING
    edit_json(plain, OWN_FILE, lambda own: own["quantization"].pop("quantized_layers"))
    assert Severity.BLOCKING not in by_rule(plain, named={"its name": "release"}).values()
    assert by_rule(plain, named={"its name": "tiny-NVFP4"})["declared-scheme-absent"] is Severity.BLOCKING
    edit_json(plain, OWN_FILE, lambda own: own["quantization"].update(quant_algo="FP8"))
    assert by_rule(plain)["declared-scheme-absent"] is Severity.BLOCKING


def test_the_scheme_of_a_person_is_compared_with_what_is_stored() -> None:
    stored = {"FP8": 3}
    assert declared_findings({}, "FP8", stored, 0.9) == []
    (finding,) = declared_findings({}, "FP8 + NVFP4", stored, 0.9)
    assert (finding.rule, finding.severity) == ("declared-scheme-absent", Severity.BLOCKING)
    assert "NVFP4" in finding.message
    assert declared_findings({}, None, stored, 0.02) == [], "experts may be left out on purpose"
    (little,) = declared_findings({}, None, stored, 0.02, {"unquantized-and-not-excluded"})
    assert (little.rule, little.severity) == ("little-quantized", Severity.BLOCKING)
    assert declared_findings({"its name": "FP8"}, None, None, None) == []
    assert declared_findings({"its name": "NVFP4, fp8"}, None, stored, 0.9) == []
    assert declared_findings({"its name": "GPTQ"}, None, {"W3A16": 3}, 0.9) == [], "it tells no width"
    (other,) = declared_findings({"its name": "NVFP4"}, None, stored, 0.9)
    assert (other.rule, other.severity) == ("declared-scheme-absent", Severity.BLOCKING)
    q3_k_m = {"Q4_0": 120, "Q4_K": 29, "Q5_0": 58, "Q5_1": 2, "Q5_K": 1, "Q8_0": 1}
    assert declared_findings({"its name": "q3_k_m"}, None, q3_k_m, 1.0) == [], "of 576 columns"
    assert declared_findings({"its name": "Q6_K"}, None, {"MXFP4": 72, "Q8_0": 98}, 1.0) == []
    for name, other in (("int3", q3_k_m), ("Q4_K_M", {}), ("Q4_K_M", {"Q2_K": 90, "Q3_K": 60, "Q4_K": 30})):
        (coarse,) = declared_findings({"its name": name}, None, other, 1.0)
        assert (coarse.rule, coarse.severity) == ("declared-scheme-absent", Severity.BLOCKING)
    (hardly,) = declared_findings({"its name": "FP8"}, None, stored, 0.005)
    assert hardly.rule == "little-quantized"


def test_the_share_is_that_of_parameters(whole: Whole) -> None:
    found = inspect_checkpoint(*whole("tiny-nvfp4"), weights_workers=1)
    quantized = sum(row.values for row in found.coverage if row.declared.startswith("NVFP4"))
    assert found.quantized_share == quantized / sum(row.values for row in found.coverage)
    assert 0 < found.quantized_share < 1
