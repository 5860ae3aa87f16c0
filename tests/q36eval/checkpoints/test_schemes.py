"""Configurations say how each module is stored, in the words of each producer.

Lists of modules as producers write them: each means what its engine says it does, and thirty thousand entries over
thirty thousand modules come to an end.
"""

import fnmatch
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from q36eval.checkpoints import load_model, patterns
from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.coverage import dead_patterns
from q36eval.checkpoints.names import canonical
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.patterns import MOST_PATTERNS, matches_pattern
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.schemes import scheme_resolver
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

from .inspection.damage import WEIGHTS, Tensors, config, edit_tensors

QWEIGHT = frozenset({"qweight", "qzeros", "scales"})
EXPERT = "model.language_model.layers.3.mlp.experts.7.down_proj"
QUERY = "model.language_model.layers.3.self_attn.q_proj"
DECLARED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("quantizations.yaml").read_text())
GPTQ, FP8, AWQ, AUTO_ROUND = (DECLARED[name] for name in ("gptq", "fp8", "awq", "auto-round"))


def resolve(
    quantization: dict[str, Any],
    module: str,
    parts: frozenset[str] = frozenset({"weight"}),
    stored: Sequence[str] = (),
) -> Scheme:
    return scheme_resolver(declaring(quantization, stored))(module, parts)


def declaring(quantization: dict[str, Any], stored: Sequence[str] = (), **sizes: int) -> Checkpoint:
    tensors = {name: TensorEntry(name, Path("none"), "F32", (), 0, 4) for name in stored}
    config = {"model_type": "qwen3_5_moe_text", "quantization_config": quantization} | sizes
    return Checkpoint(HeldFolder(Path("checkpoint")), config, tensors)


def test_gptq_rules_exclude_and_override_in_order() -> None:
    rules = {
        r"-:.*self_attn\.q_proj": {},
        r"+:.*layers\.3\..*down_proj": {"bits": 8, "group_size": -1, "desc_act": True},
        r".*down_proj": {"bits": 2},
    }
    config = GPTQ | {"dynamic": rules}
    assert resolve(config, QUERY, QWEIGHT).format == "plain"
    overridden = resolve(config, EXPERT, QWEIGHT)
    found = [overridden.setting(name) for name in ("bits", "group_size", "desc_act")]
    assert found == [8, -1, True]
    assert resolve(config, EXPERT.replace("layers.3", "layers.4"), QWEIGHT).setting("bits") == 2
    assert resolve(config, EXPERT.replace("down", "up"), QWEIGHT).setting("bits") == 4
    assert resolve(config, EXPERT).format == "plain"  # what is stored plain is plain: no list says otherwise


def test_auto_round_takes_a_layer_by_name_before_the_first_pattern_and_blocks_last() -> None:
    extra = {
        r".*down_proj.*": {"bits": 16, "data_type": "fp"},
        EXPERT: {"bits": 8, "group_size": None},
        r"experts\.\d+\.(up|down)": {"bits": 2},
        "lm_head": {"bits": 4, "group_size": 32},
    }
    config = AUTO_ROUND | {"extra_config": extra}
    named = resolve(config, EXPERT)
    assert [named.setting(name) for name in ("bits", "group_size", "zero_offset")] == [8, 128, 0]
    assert resolve(config, EXPERT.replace(".7.", ".8.")).format == "plain"  # the first pattern
    assert resolve(config, EXPERT.replace("down", "up")).setting("bits") == 2
    assert resolve(config, QUERY).setting("bits") == 4
    assert resolve(config, "lm_head").setting("group_size") == 32  # outside all blocks, and named
    assert resolve(AUTO_ROUND, "lm_head").format == "plain"
    assert resolve(AUTO_ROUND, "model.language_model.layers.3.mlp.gate").format == "plain"  # no linear layer
    assert resolve(AUTO_ROUND | {"block_name_to_quantize": "model.layers.4,model.layers.5"}, QUERY).format == "plain"
    assert resolve(AUTO_ROUND | {"block_name_to_quantize": ["model.layers.3"]}, QUERY).format == "gptq"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"packing_format": "auto_round:fp8_static"}, ("scheme-unsupported", "auto_round:auto_gptq")),
        ({"act_bits": 8}, ("activations-unsupported", "8 bits")),
        ({"bits": 5}, ("scheme-unsupported", "2, 3, 4, 8")),
        ({"rotation_config": {"kind": "hadamard"}}, ("scheme-unsupported", "rotation_config")),
    ],
)
def test_what_of_auto_round_is_not_decoded_says_so(change: dict[str, Any], expected: tuple[str, ...]) -> None:
    with raises(UsageError, *expected):
        resolve(AUTO_ROUND | change, QUERY)


def test_awq_leaves_out_whatever_holds_a_listed_name() -> None:
    config = AWQ | {"modules_to_not_convert": ["self_attn", "layers.3.mlp.experts.7"]}
    assert resolve(config, QUERY, QWEIGHT).format == "plain"
    assert resolve(config, EXPERT, QWEIGHT).format == "plain"
    scheme = resolve(config, EXPERT.replace(".7.", ".8."), QWEIGHT)
    assert [scheme.setting(name) for name in ("bits", "group_size", "sym")] == [4, 128, False]
    assert resolve(config, EXPERT.replace(".7.", ".8.")).format == "plain"  # stored so
    for change, told in (({"version": "gemv"}, "known: gemm"), ({"bits": 3}, "known: 4")):
        with raises(UsageError, "scheme-unsupported", told):
            resolve(AWQ | change, EXPERT, QWEIGHT)


def test_fine_grained_fp8_leaves_out_what_is_listed_and_the_head() -> None:
    for name in ("lm_head", "model.layers.3.linear_attn.in_proj_qkv", "model.layers.3.mlp.gate", "model.norm"):
        assert resolve(FP8, name).format == "plain"
    scheme = resolve(FP8, EXPERT)
    assert (scheme.format, scheme.setting("block")) == ("fp8", (128, 128))
    assert resolve(FP8, EXPERT.replace("down", "gate")).format == "fp8"  # "mlp.gate" is no prefix of names
    assert resolve(FP8 | {"modules_to_not_convert": None}, "lm_head", frozenset({"weight_scale_inv"})).format == "fp8"


def test_model_optimizer_lists_layers_of_several_kinds() -> None:
    layers = {
        "model.layers.3.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.3.mlp.experts.9.down_proj": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    }
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert resolve(mixed, EXPERT).format == "modelopt-nvfp4"
    assert resolve(mixed, EXPERT.replace("experts.7", "experts.9")).setting("per_channel")
    assert resolve(mixed, QUERY).setting("inputs") == "tensor"
    assert resolve(mixed, "model.layers.30.self_attn.q_proj").format == "plain"
    with raises(UsageError, "scheme-unsupported", "W4A8_AWQ"):
        resolve(mixed | {"quantized_layers": {"lm_head": {"quant_algo": "W4A8_AWQ"}}}, EXPERT)


def test_model_optimizer_may_quantize_the_kv_cache_alone() -> None:
    config = {"quant_method": "modelopt", "quant_algo": None}
    assert resolve(config | {"kv_cache_quant_algo": "FP8"}, QUERY).format == "plain"
    lower = {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}  # as Model Optimizer 0.47 writes it
    assert resolve(lower, QUERY).setting("block") == (128, 128)
    with raises(UsageError, "scheme-unsupported", "None"):
        resolve(config, QUERY)


WEIGHTS_ALONE = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16}, "input_activations": None}
WITH_INPUTS = WEIGHTS_ALONE | {"input_activations": {"num_bits": 4}}
MIXED = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {QUERY: {"quant_algo": "NVFP4"}}}
SCALE = QUERY.replace("q_proj", "o_proj") + ".input_scale"


@pytest.mark.parametrize(
    ("groups", "change", "stored", "believed"),
    [
        ([WEIGHTS_ALONE], {}, [], True),
        ([WEIGHTS_ALONE], {"quant_algo": "nvfp4", "ignore": ["*.o_proj"]}, [SCALE], True),
        ([WEIGHTS_ALONE], {}, [SCALE], False),
        ([WEIGHTS_ALONE, WITH_INPUTS], {}, [], False),
        ([{"targets": None}], {}, [], False),
        ([WEIGHTS_ALONE], {"quant_algo": "mxfp4"}, [], False),
        ([WEIGHTS_ALONE], MIXED, [], False),
    ],
)
def test_model_optimizers_groups_are_believed_where_nothing_speaks_against_them(
    groups: list[dict[str, Any]], change: dict[str, Any], stored: list[str], believed: bool
) -> None:
    """vLLM believes those of NVFP4; where scales are stored, or for other algorithms, the worse reading is judged."""
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": named} | change
    scheme = resolve(config, QUERY, stored=stored)
    inputs = FORMATS[scheme.format].activations({"input_scale": torch.tensor(0.01)}, scheme)
    assert (inputs is None) is believed


def compressed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32} | weights}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"group_0": group}}


def test_older_activation_orders_are_read_and_need_their_column_order() -> None:
    scheme = resolve(compressed(strategy="group", actorder="group"), EXPERT)
    assert (scheme.format, scheme.setting("needs_g_idx")) == ("pack-quantized", True)
    assert resolve(compressed(strategy="group", actorder="weight"), EXPERT).setting("needs_g_idx") is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_plain_checkpoints_of_other_dtypes_are_rounded_once(folder: Path, dtype: torch.dtype) -> None:
    wider = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    edit_tensors(folder, lambda tensors: tensors.update(wider))
    config(quantization_config=None)(folder)
    head = load_model(folder).model.lm_head.weight
    assert torch.equal(head, wider["lm_head.weight"].bfloat16())


def test_inputs_that_cannot_be_emulated_are_refused_unless_switched_off(folder: Path) -> None:
    inputs = {"num_bits": 4, "type": "int", "strategy": "token", "dynamic": True}
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["re:.*q_proj$"], "weights": weights, "input_activations": inputs}

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("q_proj.weight")]:
            tensors[f"{name}_scale"] = torch.full((len(tensors[name]), 1), 0.1).bfloat16()
            tensors[name] = tensors[name].mul(10).to(torch.int8)

    edit_tensors(folder, change)
    declared = compressed() | {"config_groups": {"group_0": group}, "format": "int-quantized"}
    config(quantization_config=declared)(folder)
    with raises(UsageError, "activations-unsupported"):
        load_model(folder)
    assert load_model(folder, emulate_activations=False).report.ignored_inputs == 1


# -- lists of modules

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


def formats(quantization: dict[str, Any], modules: list[str], **sizes: int) -> dict[str, str]:
    resolve = scheme_resolver(declaring(quantization, **sizes))
    return {module: resolve(module, frozenset({"qweight", "weight_scale"})).format for module in modules}


COMPRESSED, MODELOPT = DECLARED["compressed-tensors"], DECLARED["modelopt"]
OF_ALL_BLOCKS = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"}


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
        (OF_ALL_BLOCKS, "extra_config", left_out_of_auto_round, []),
    ],
    ids=["compressed-tensors", "modelopt", "fp8", "auto-round"],
)
def test_each_entry_means_what_comparing_name_by_name_says(
    quantization: dict[str, Any],
    key: str,
    is_left_out: Callable[[str, list[str]], bool],
    more: list[str],
) -> None:
    modules = modules_of(layers=2, experts=2)
    linear = [module for module in modules if module.endswith(("_proj", "_qkv", "_z", "shared_expert_gate"))]
    for entry in [*DECLARED["odd entries"], *more]:
        given: Any = {entry: {"bits": 16}} if key == "extra_config" else [entry]
        declared = quantization | {key: given}
        left_out = [module for module in linear if is_left_out(module, [entry])]
        found = formats(declared, linear, num_hidden_layers=2, num_experts=2)
        plain = [name for name, kind in found.items() if kind == "plain"]
        assert plain == left_out, entry
        meant = [module for module in modules if is_left_out(module, [entry])]
        assert dead_patterns(declared, modules) == ([] if meant else [entry])


@pytest.mark.long
@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt", "mixed", "fp8", "auto-round"])
def test_lists_of_every_module_come_to_an_end_at_the_full_shape(method: str) -> None:
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
        "auto-round": OF_ALL_BLOCKS | {"extra_config": {module: {"bits": 16} for module in modules}},
    }
    kinds = set(formats(declared[method], modules, num_hidden_layers=LAYERS, num_experts=EXPERTS).values())
    assert kinds == {"modelopt-fp8" if method == "mixed" else "plain"}
    assert dead_patterns(declared[method], modules) == []


@pytest.mark.parametrize(
    ("quantization", "key", "pattern"),
    [
        (COMPRESSED, "ignore", "re:.*layers.{}.foo$"),
        (MODELOPT, "ignore", "*layers.{}.foo*"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "dynamic", "-:.*layers.{}.foo$"),
        (OF_ALL_BLOCKS, "extra_config", ".*layers.{}.foo$"),
    ],
    ids=["compressed-tensors", "modelopt", "gptq", "auto-round"],
)
def test_more_patterns_than_anybody_writes_are_refused(quantization: dict[str, Any], key: str, pattern: str) -> None:
    def declared(count: int) -> dict[str, Any]:
        given = [pattern.format(number) for number in range(count)]
        return quantization | {key: given if key == "ignore" else {name: {} for name in given}}

    scheme_resolver(declaring(declared(MOST_PATTERNS)))
    with raises(CorruptCheckpointError, "patterns-too-many", "1,025", "1,024"):
        scheme_resolver(declaring(declared(MOST_PATTERNS + 1)))


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
