"""A branch that is called quantized and stores nothing quantized is blocked, whoever calls it so."""

import json
from pathlib import Path

import pytest

from q36eval.checkpoints.inspection import Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.declared_scheme import declared_findings, named_scheme

from .conftest import Copy, Whole
from .damage import OWN_FILE, edit_json

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
