"""Lists of modules as producers write them: each means what its engine says it does, and thirty thousand entries over
thirty thousand modules come to an end."""

import fnmatch
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints import patterns
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.coverage import dead_patterns
from q36eval.checkpoints.names import canonical
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.patterns import MOST_PATTERNS, matches_pattern
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.schemes import scheme_resolver
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises

from .test_schemes import DECLARED

pytestmark = pytest.mark.timeout(120, method="signal")
"""What takes one or two; entry by entry and module by module it took over ten minutes."""
LAYERS, EXPERTS = 40, 256


def modules_of(layers: int, experts: int) -> list[str]:
    modules = ["lm_head", "model.language_model.embed_tokens", "model.visual.blocks.0.attn.qkv"]
    for number in range(layers):
        layer = f"model.language_model.layers.{number}"
        modules += [f"{layer}.linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "out_proj")]
        modules += [f"{layer}.mlp.gate", f"{layer}.mlp.shared_expert_gate"]
        modules += [
            f"{layer}.mlp.experts.{expert}.{projection}_proj"
            for expert in range(experts)
            for projection in ("gate", "up", "down")
        ]
    return modules


def declaring(quantization: dict[str, Any], tmp_path: Path, layers: int = 2, experts: int = 2) -> Checkpoint:
    entry = TensorEntry("x", tmp_path / "model.safetensors", "BF16", (1,), 0, 2)
    model = {"model_type": "qwen3_5_moe_text", "num_hidden_layers": layers, "num_experts": experts}
    return Checkpoint(HeldFolder(tmp_path), {**model, "quantization_config": quantization}, {"x": entry})


def formats(
    quantization: dict[str, Any], modules: list[str], tmp_path: Path, layers: int = 2, experts: int = 2
) -> dict[str, str]:
    resolve = scheme_resolver(declaring(quantization, tmp_path, layers, experts))
    return {module: resolve(module, frozenset({"qweight", "weight_scale"})).format for module in modules}


COMPRESSED, MODELOPT = DECLARED["compressed-tensors"], DECLARED["modelopt"]
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def names(module: str) -> tuple[str, str]:
    return module, canonical(module)


def left_out_by_glob(module: str, given: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names(module) for pattern in given)


def left_out_with_all_below(module: str, given: list[str]) -> bool:
    name = canonical(module)
    rules = [canonical(rule) for rule in given]
    return any(f"{name}.".startswith(f"{rule}.") or f".{name}".endswith(f".{rule}") for rule in rules)


def left_out_of_auto_round(module: str, given: list[str]) -> bool:
    text_only = [f"model.language_model.{n.removeprefix('model.')}" for n in names(module) if n.startswith("model.")]
    return any(name in given for name in (*names(module), *text_only))


@pytest.mark.parametrize(
    ("quantization", "key", "is_left_out", "more"),
    [
        (COMPRESSED, "ignore", lambda module, given: any(name in given for name in names(module)), []),
        (
            MODELOPT,
            "ignore",
            left_out_by_glob,
            ["*gate", "model.layers.1*", "*.experts.[0]*", "model.language_model.*"],
        ),
        (FP8, "modules_to_not_convert", left_out_with_all_below, []),
        (AUTO_ROUND, "extra_config", left_out_of_auto_round, []),
    ],
    ids=["compressed-tensors", "modelopt", "fp8", "auto-round"],
)
def test_each_entry_means_what_comparing_name_by_name_says(
    quantization: dict[str, Any],
    key: str,
    is_left_out: Callable[[str, list[str]], bool],
    more: list[str],
    tmp_path: Path,
) -> None:
    modules = modules_of(layers=2, experts=2)
    linear = [module for module in modules if module.endswith(("_proj", "_qkv", "_z", "shared_expert_gate"))]
    for entry in [*DECLARED["odd entries"], *more]:
        given: Any = {entry: {"bits": 16}} if key == "extra_config" else [entry]
        declared = quantization | {key: given}
        left_out = [module for module in linear if is_left_out(module, [entry])]
        plain = [name for name, kind in formats(declared, linear, tmp_path).items() if kind == "plain"]
        assert plain == left_out, entry
        meant = [module for module in modules if is_left_out(module, [entry])]
        assert dead_patterns(declared, modules) == ([] if meant else [entry])


@pytest.mark.long
@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt", "mixed", "fp8", "auto-round"])
def test_lists_of_every_module_come_to_an_end_at_the_full_shape(method: str, tmp_path: Path) -> None:
    """llm-compressor and AutoRound list what they leave out module by module, Model Optimizer's mixed recipes what they
    quantize."""
    modules = modules_of(LAYERS, EXPERTS)
    declared: dict[str, dict[str, Any]] = {
        "compressed-tensors": COMPRESSED | {"ignore": modules},
        "modelopt": MODELOPT | {"ignore": modules},
        "mixed": {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {module: {"quant_algo": "FP8"} for module in modules},
        },
        "fp8": FP8 | {"modules_to_not_convert": modules},
        "auto-round": AUTO_ROUND | {"extra_config": {module: {"bits": 16} for module in modules}},
    }
    kinds = set(formats(declared[method], modules, tmp_path, LAYERS, EXPERTS).values())
    assert kinds == {"modelopt-fp8" if method == "mixed" else "plain"}
    assert dead_patterns(declared[method], modules) == []


@pytest.mark.parametrize(
    ("quantization", "key", "pattern"),
    [
        (COMPRESSED, "ignore", "re:.*layers.{}.foo$"),
        (MODELOPT, "ignore", "*layers.{}.foo*"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "dynamic", "-:.*layers.{}.foo$"),
        (AUTO_ROUND, "extra_config", ".*layers.{}.foo$"),
    ],
    ids=["compressed-tensors", "modelopt", "gptq", "auto-round"],
)
def test_more_patterns_than_anybody_writes_are_refused(
    quantization: dict[str, Any], key: str, pattern: str, tmp_path: Path
) -> None:
    def declared(count: int) -> dict[str, Any]:
        given = [pattern.format(number) for number in range(count)]
        return quantization | {key: given if key == "ignore" else {name: {} for name in given}}

    scheme_resolver(declaring(declared(MOST_PATTERNS), tmp_path))
    with raises(CorruptCheckpointError, "patterns-too-many", "1,025", "1,024"):
        scheme_resolver(declaring(declared(MOST_PATTERNS + 1), tmp_path))


NAME = "model.layers.3.mlp.experts.4.up_proj"


def test_a_pattern_that_works_without_end_is_refused_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    endless, name = r"(?:\w|\.|[a-z])+\Z(?<=[0-9])", NAME * 3
    begun = time.thread_time()
    for _ in range(100):
        with raises(CorruptCheckpointError, "pattern-too-slow"):
            matches_pattern(endless, name)
    assert time.thread_time() - begun < 100 * patterns.SECONDS, "once, not for every name"
    assert matches_pattern(r"experts\.\d+\.(gate|up|down)_proj$", NAME, anywhere=True)
