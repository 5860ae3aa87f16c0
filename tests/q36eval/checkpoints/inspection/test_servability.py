"""Each rule on a checkpoint that meets it and on one that does not; errors are those of decoding as engines do."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection import Finding, Inspection, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.servability import TOLERATED, as_fused, fused_groups, grouped_rows
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import LogicalWeight, index_weights
from tests.branches import folder_of

from .damage import EXPERT, SANDBOX, Tensors, edit_json, edit_tensors, rescale, without

ATTENTION = "model.layers.2.self_attn"


@pytest.fixture
def modelopt(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of("nvfp4-modelopt"), tmp_path / "modelopt"))


def found(folder: Path, rule: str | None = None) -> list[Finding]:
    inspection: Inspection = inspect_checkpoint(folder, SANDBOX / "bf16")
    assert Section.SERVABILITY in inspection.measured
    kept = [finding for finding in inspection.findings if finding.section is Section.SERVABILITY]
    return [finding for finding in kept if rule in (None, finding.rule)]


@pytest.mark.long
@pytest.mark.parametrize("branch", ["folder", "modelopt"])
def test_experts_up_projections_come_out_by_the_gates_scale(branch: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(branch)
    assert found(folder) == []
    edit_tensors(folder, rescale(f"{EXPERT}.up_proj", 0.5))
    inspection = inspect_checkpoint(folder, SANDBOX / "bf16")
    (finding,) = inspection.blocking
    assert (finding.section, finding.rule) == (Section.SERVABILITY, "fused-global-scales")
    units = index_weights(open_checkpoint(folder)).weights
    assert as_fused(fused_groups(units)[f"{EXPERT}.gate_up_proj"]) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(("factor", "wrong"), [(2.0, "kv"), (0.5, "q")])
def test_of_other_modules_the_largest_stored_scale_counts(folder: Path, factor: float, wrong: str) -> None:
    """compressed-tensors divides by it: the others come out too small."""
    edit_tensors(folder, rescale(f"{ATTENTION}.q_proj", factor))
    units = index_weights(open_checkpoint(folder)).weights
    groups = {name: members for name, members in fused_groups(units).items() if name.startswith(ATTENTION)}
    factors = dict(zip("qkv", as_fused(groups[f"{ATTENTION}.qkv_proj"]) or (), strict=True))
    assert {name for name, factor in factors.items() if factor != 1} == set(wrong)
    assert all(factors[name] == pytest.approx(0.5) for name in wrong)


@pytest.mark.long
def test_scales_of_experts_are_told_with_the_gpus_that_reorder_them() -> None:
    told = {"gptq-int4": "72 gate and up projections", "w4a16": "on 4 GPUs"}
    for branch, words in told.items():
        (finding,) = found(folder_of(branch))
        assert (finding.rule, finding.severity) == ("expert-scales-reordered", Severity.ADVISORY)
        assert words in finding.message


@pytest.mark.parametrize(
    ("rows", "columns", "group", "gpus"),
    [
        *((512, 2048, 128, 4), (512, 2048, 64, 8), (512, 2048, 32, 16), (256, 2048, 128, 2)),
        *((128, 128, 128, None), (64, 256, 128, None), (256, 512, 256, None), (128, 192, 64, None)),
        (448, 2048, 128, None),
    ],
)
def test_on_how_many_gpus_experts_of_a_shape_are_reordered(
    rows: int, columns: int, group: int, gpus: int | None
) -> None:
    """As vLLM decides it: Marlin has groups of 32 to 128, and a share of no whole groups it does not get."""
    entries = {
        "qweight": entry("I32", (columns // 8, rows)),
        "scales": entry("F16", (columns // group, rows)),
    }
    scheme = Scheme("gptq", settings=(("bits", 4), ("group_size", group), ("sym", True)))
    name = "model.layers.0.mlp.experts.0.up_proj.weight"
    checkpoint = open_checkpoint(SANDBOX / "bf16")

    def found_of(scheme: Scheme, **changed: TensorEntry) -> int | None:
        grouped = grouped_rows(LogicalWeight(checkpoint, name, tuple((entries | changed).items()), scheme))
        return None if grouped is None else grouped[0] // grouped[1]

    assert found_of(scheme) == gpus
    assert found_of(replace(scheme, settings=(("bits", 4), ("group_size", group), ("sym", False)))) is None
    assert found_of(scheme, scales=entry("F16", (columns // group, rows - 1))) is None
    assert found_of(scheme, scales=entry("F16", (0, rows))) is None
    assert found_of(scheme, scales=entry("F16", (rows,))) is None


def entry(dtype: str, shape: tuple[int, ...]) -> TensorEntry:
    """A header's word of a tensor."""
    return TensorEntry("x", Path("x"), dtype, shape, 0, 0)


def test_a_small_difference_is_told_and_no_more(folder: Path) -> None:
    def nudge(tensors: Tensors) -> None:
        tensors[f"{EXPERT}.up_proj.weight_global_scale"] *= 1 + TOLERATED / 2

    edit_tensors(folder, nudge)
    (finding,) = found(folder)
    assert (finding.rule, finding.severity) == ("fused-global-scales", Severity.ADVISORY)


def test_calibrated_scales_of_the_cache_are_told(folder: Path) -> None:
    def calibrate(tensors: Tensors) -> None:
        tensors[f"{ATTENTION}.k_scale"], tensors[f"{ATTENTION}.v_scale"] = torch.tensor(0.5), torch.tensor(1.0)

    edit_tensors(folder, calibrate)
    (finding,) = found(folder, "kv-scales-ignored")
    assert finding.severity is Severity.ADVISORY


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "told"), [("float16", 1), ("bfloat16", 1), ("float32", 0), ("auto", 0), (7, 0)])
def test_a_state_that_the_configuration_wants_narrower_is_told(folder: Path, dtype: object, told: int) -> None:
    edit_json(folder, "config.json", lambda config: config.update(mamba_ssm_dtype=dtype))
    assert len(found(folder, "state-dtype")) == told


def test_an_expert_without_the_scale_of_its_inputs_is_named(modelopt: Path) -> None:
    edit_tensors(modelopt, lambda tensors: tensors.pop(f"{EXPERT}.up_proj.input_scale"))
    assert len(found(modelopt, "expert-input-scales")) == 1


@pytest.mark.long
def test_quantized_router_gates_are_told(folder: Path) -> None:
    """As the neighbouring weight's parts, of the gate's own numbers of rows."""
    module = "model.layers.3.mlp.gate"

    def quantize(tensors: Tensors) -> None:
        gate = tensors.pop(f"{module}.weight")
        for part in ("weight_packed", "weight_scale"):
            tensors[f"{module}.{part}"] = tensors[f"{EXPERT}.gate_proj.{part}"][: len(gate)].clone()
        for part in ("weight_global_scale", "input_global_scale"):
            tensors[f"{module}.{part}"] = tensors[f"{EXPERT}.gate_proj.{part}"].clone()

    def declare(config: dict[str, Any]) -> None:
        quantization = config["quantization_config"]
        quantization["ignore"] = [name for name in quantization["ignore"] if name != module]
        next(iter(quantization["config_groups"].values()))["targets"].append(module)

    edit_tensors(folder, quantize)
    edit_json(folder, "config.json", declare)
    (finding,) = found(folder, "router-gates-quantized")
    assert finding.severity is Severity.ADVISORY


@pytest.mark.long
def test_scales_of_inputs_under_a_weight_only_algorithm_are_no_fault(modelopt: Path) -> None:
    """As in nvidia/Qwen3.6-35B-A3B-NVFP4, of which 121 linear modules and all experts have them."""
    for name in ("config.json", "hf_quant_config.json"):
        key = "quantization_config" if name == "config.json" else "quantization"
        edit_json(modelopt, name, lambda config, key=key: config[key].update(quant_algo="W4A16_NVFP4"))
    assert not inspect_checkpoint(modelopt, SANDBOX / "bf16").blocking


@pytest.mark.long
def test_weights_alone_under_the_name_of_nvfp4_are_read_as_their_groups_say(modelopt: Path) -> None:
    """Without the groups' word the scales of inputs are missing, and that is damage."""
    without(".input_scale")(modelopt)
    assert {finding.rule for finding in inspect_checkpoint(modelopt, SANDBOX / "bf16").blocking} == {"activation-scale"}
    edit_json(
        modelopt,
        "config.json",
        lambda config: config["quantization_config"]["config_groups"]["group_0"].update(input_activations=None),
    )
    inspection = inspect_checkpoint(modelopt, SANDBOX / "bf16")
    assert not inspection.blocking
    assert inspection.schemes == {"NVFP4_A16": 108}


def test_groups_do_not_make_weights_alone_of_what_quantizes_inputs(modelopt: Path) -> None:
    """Engines that read hf_quant_config.json see no groups: the worse reading is judged."""

    def no_inputs(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            del group["input_activations"]

    edit_json(modelopt, "config.json", no_inputs)
    assert inspect_checkpoint(modelopt).schemes == {"NVFP4": 108}


@pytest.mark.parametrize("stored", ["gptq", "gptq_v2"])
def test_symmetric_zero_points_under_the_name_of_either_version_decode_alike(tmp_path: Path, stored: str) -> None:
    """Version 1 stores 7 and version 2 stores 8; kernels that read them differ, and the finding blocks nothing."""
    folder = Path(shutil.copytree(folder_of("gptq-int4"), tmp_path / "gptq"))
    right = {
        name: unit.decode(unit.read_parts())
        for name, unit in index_weights(open_checkpoint(folder)).weights.items()
        if ".experts.3." in name
    }
    declared = open_checkpoint(folder).config["quantization_config"].get("checkpoint_format", "gptq")
    assert declared == "gptq"
    digit = {"gptq": 0x77777777, "gptq_v2": 0x88888888 - (1 << 32)}[stored]

    def zeros(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith(".qzeros"):
                assert bool((tensor == 0x77777777).all())
                tensor.fill_(digit)

    edit_tensors(folder, zeros)
    units = index_weights(open_checkpoint(folder)).weights
    assert all(torch.equal(units[name].decode(units[name].read_parts()), value) for name, value in right.items())
    inspection = inspect_checkpoint(folder, SANDBOX / "bf16")
    rules = [finding.rule for finding in inspection.findings if finding.section is Section.SERVABILITY]
    assert ("zero-points-of-other-version" in rules) == (stored != declared)
    assert not inspection.blocking
