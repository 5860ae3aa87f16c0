"""Smoothing is folded out before anything is compared, and only where every weight behind it carries the factor."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.inspection import Finding, Inspection, Section, comparison, inspect_checkpoint
from q36eval.checkpoints.inspection.comparison import WeightError
from q36eval.checkpoints.inspection.error import Examined, Pass, examine
from q36eval.checkpoints.inspection.stacks import examine_all
from q36eval.checkpoints.weights import LogicalWeight, index_weights
from tests.q36eval.checkpoints.architectures import quantize

from . import tiny
from .damage import Tensors, edit_tensors, one
from .tiny import GOLDEN

LAYERS = (0, 1)  # linear attention, full attention


def behind(layer: int, norm: str) -> list[str]:
    """The weights that take the norm's channels in the model of `bf16_folder`, written down by hand."""
    prefix = f"model.layers.{layer}"
    if norm == "input_layernorm":
        linear = [f"linear_attn.in_proj_{one}" for one in ("qkv", "z", "b", "a")]
        names = linear if layer == 0 else [f"self_attn.{one}_proj" for one in "qkv"]
    else:
        experts = [f"mlp.experts.{expert}.{one}_proj" for expert in range(4) for one in ("gate", "up")]
        shared = ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert_gate"]
        names = [*experts, *shared, "mlp.gate"]
    return [f"{prefix}.{name}.weight" for name in names]


def factors(count: int, seed: int, spread: float = 0.5) -> Tensor:
    return (torch.randn(count, generator=torch.Generator().manual_seed(seed)) * spread).exp().bfloat16()


def smooth_norms(tensors: Tensors, spread: float = 0.5) -> None:
    """As llm-compressor does: 1 + w in BF16, divided, back; the weights behind it multiplied, all in BF16."""
    for layer in LAYERS:
        for seed, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            name = f"model.layers.{layer}.{norm}.weight"
            scales = factors(len(tensors[name]), 2 * layer + seed, spread)
            whole = (1 + tensors[name].float()).bfloat16() / scales
            tensors[name] = (whole.float() - 1).bfloat16()
            for taker in behind(layer, norm):
                tensors[taker] = tensors[taker] * scales


def smooth_pairs(tensors: Tensors) -> None:
    """The rows of every up projection for the columns of its down projection, and of values for those of the output."""
    for seed, name in enumerate(sorted(tensors)):
        if name.endswith(".up_proj.weight"):
            taker = name.replace("up_proj", "down_proj")
        elif name.endswith(".v_proj.weight"):
            taker = name.replace("v_proj", "o_proj")
        else:
            continue
        scales = factors(len(tensors[name]), seed)
        tensors[name] = tensors[name] / scales[:, None]
        per_head = scales.repeat(tensors[taker].shape[1] // len(scales))  # one key-value head for two
        tensors[taker] = tensors[taker] * per_head


def rounded(source: Path, folder: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy whose weights were changed, and then its linear layers and experts rounded to FP8."""
    shutil.copytree(source, folder)
    edit_tensors(folder, change)
    quantize(folder)
    return folder


def of_weights(inspection: Inspection) -> list[Finding]:
    """What blocks and is about weights against the reference's; these folders have no tokenizer."""
    assert Section.WEIGHTS in inspection.measured
    return inspection.blocking_in(Section.WEIGHTS)


def advised(inspection: Inspection) -> dict[str, str]:
    return {one.rule: one.message for one in inspection.findings if one.section is Section.WEIGHTS}


@pytest.mark.parametrize("which", ["norms", "pairs", "both"])
def test_what_was_smoothed_and_rounded_is_clean(bf16_folder: Path, tmp_path: Path, which: str) -> None:
    def change(tensors: Tensors) -> None:
        if which != "pairs":
            smooth_norms(tensors)
        if which != "norms":
            smooth_pairs(tensors)

    inspection = inspect_checkpoint(rounded(bf16_folder, tmp_path / "copy", change), bf16_folder)
    assert not of_weights(inspection)
    said = advised(inspection)["smoothed"]
    assert said.startswith(f"Smoothed: {0 if which == 'pairs' else 4} norms")
    assert ("rows of 11 projections" in said) == (which != "norms")  # two layers of five experts, one of values
    assert max(row.worst_relative_error for row in inspection.errors) < 0.05  # of rounding; with the factors in, 0.5


def test_a_channel_that_rounding_erases_carries_no_factor(bf16_folder: Path, tmp_path: Path) -> None:
    reference = shutil.copytree(bf16_folder, tmp_path / "reference")
    edit_tensors(reference, lambda tensors: tensors[EXPERT][:, 5].mul_(1e-6))
    assert not of_weights(inspect_checkpoint(rounded(reference, tmp_path / "copy", smooth_norms), reference))


ROUTER, EXPERT = "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.experts.2.gate_proj.weight"
DOWN, VALUES = "model.layers.0.mlp.experts.1.down_proj.weight", "model.layers.1.self_attn.v_proj.weight"
UP = "model.layers.1.mlp.experts.2.up_proj.weight"
NORM = "model.layers.1.post_attention_layernorm.weight"


def left_out(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        before = tensors[name].clone()
        smooth_norms(tensors)
        tensors[name] = before

    return change


def column(name: str, factor: float, pairs: bool = False) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        smooth_norms(tensors)
        if pairs:
            smooth_pairs(tensors)
        tensors[name] = tensors[name].clone()
        tensors[name][:, 5] *= factor

    return change


def channel_of_a_norm(tensors: Tensors) -> None:
    smooth_norms(tensors)
    tensors[NORM] = tensors[NORM].clone()
    tensors[NORM][7] = 2 * tensors[NORM][7] + 1  # 1 + w doubled


def norms_alone(tensors: Tensors) -> None:
    for name in (NORM, "model.layers.0.input_layernorm.weight"):
        whole = 1 + tensors[name].float()
        tensors[name] = (whole / factors(len(whole), 3).float() - 1).bfloat16()


def all_but_the_norms(tensors: Tensors) -> None:
    before = {name: tensor.clone() for name, tensor in tensors.items() if "layernorm" in name}
    smooth_norms(tensors)
    tensors |= before


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (left_out("model.layers.0.linear_attn.in_proj_b.weight"), "model.layers.0.linear_attn.in_proj_b.weight"),
        (left_out(EXPERT), EXPERT),
        (left_out(VALUES), VALUES),
        (column(EXPERT, 0.5), EXPERT),
        (column(ROUTER, 1.04), ROUTER),
        (column(DOWN, 2.0, pairs=True), DOWN),
        (column(UP, 2.0, pairs=True), UP),
        (channel_of_a_norm, None),
        (norms_alone, NORM),
        (all_but_the_norms, ROUTER),
    ],
)
def test_what_does_not_carry_the_factor_is_found(
    bf16_folder: Path, tmp_path: Path, change: Callable[[Tensors], None], subject: str | None
) -> None:
    found = of_weights(inspect_checkpoint(rounded(bf16_folder, tmp_path / "copy", change), bf16_folder))
    assert found
    assert subject is None or subject in {finding.subject for finding in found}


def test_one_router_left_out_is_the_only_finding(bf16_folder: Path, tmp_path: Path) -> None:
    """What llm-compressor 0.14's own mappings for this model do: its router is a parameter, which they do not list."""
    folder = rounded(bf16_folder, tmp_path / "copy", left_out(ROUTER))
    (found,) = of_weights(inspect_checkpoint(folder, bf16_folder))
    assert (found.subject, found.section) == (ROUTER, Section.WEIGHTS)


def test_what_llm_compressor_smoothed_is_clean(tmp_path: Path) -> None:
    from golden_base import MICROSCALED, base_model

    awq_start = tmp_path / "start"
    base_model(**MICROSCALED).save_pretrained(awq_start)
    inspection = inspect_checkpoint(GOLDEN / "ct-awq", awq_start)
    assert not of_weights(inspection)
    assert advised(inspection)["smoothed"].startswith("Smoothed: 2 norms are divided")
    assert advised(inspection)["norms-rounded"].startswith("3 norms are the reference's with 1 + weight rounded")
    folder = tmp_path / "damaged"
    shutil.copytree(GOLDEN / "ct-awq", folder)

    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.mlp.gate.weight"][1, 3] *= 1.04
        tensors["model.norm.weight"][3] += 2.0**-7

    edit_tensors(folder, change)
    found = {finding.subject for finding in of_weights(inspect_checkpoint(folder, awq_start))}
    assert found == {"model.layers.0.mlp.gate.weight", "model.norm.weight"}


# -- weights that are compared together


NAMES = sorted(tiny.MANIFEST)


def units_in(folder: Path) -> dict[str, LogicalWeight]:
    return index_weights(open_checkpoint(folder)).weights


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The references of all golden checkpoints, each in the folder of its name."""
    place = tmp_path_factory.mktemp("references")
    for name in NAMES:
        tiny.golden(name, place / "golden" / name)
        (place / name).symlink_to(place / "golden" / name / "reference")
    return place


def alike(one: Sequence[Examined], other: Sequence[Examined], tolerance: float = 1e-5) -> None:
    """Figures may differ by the order of summation: float32 over a row, some square roots of which are subtracted."""
    for mine, theirs in zip(one, other, strict=True):
        assert mine.findings == theirs.findings
        assert (mine.error is None) == (theirs.error is None)
        if mine.error is not None and theirs.error is not None:
            assert figures(mine.error) == pytest.approx(figures(theirs.error), rel=tolerance, nan_ok=True)
            assert (mine.error.name, mine.error.stored) == (theirs.error.name, theirs.error.stored)


def figures(error: WeightError) -> list[float]:
    used = [] if error.usage is None else [error.usage.share, error.usage.row, error.usage.column]
    return [error.relative_error, error.gain, error.honest or 0.0, error.honest_gain, *used]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_together_or_by_rows_the_figures_are_those_of_each_alone(
    name: str, references: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, how = units_in(GOLDEN / name), Pass({}, units_in(references / name))
    all_of_them = list(units.values())
    alone = [examine(unit, how) for unit in all_of_them]
    assert all(one.error is not None for one in alone)
    alike(examine_all(all_of_them, how, 2), alone)
    monkeypatch.setattr(comparison, "SLAB", 2**10)  # the least number of rows at once
    monkeypatch.setattr(comparison, "ROWS_MULTIPLE", 32)
    alike(examine_all(all_of_them, how, 2), alone)
    without = Pass({}, {})
    alike(examine_all(all_of_them, without, 2), [examine(unit, without) for unit in all_of_them])


UP_PROJ = "model.layers.0.mlp.experts.1.up_proj"


def _zero_in_one_row(scale: Tensor) -> Tensor:
    changed = scale.float().clone()
    changed[3] = 0
    return changed.to(scale.dtype)


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda scale: (scale.float() * factor).to(scale.dtype)


@pytest.mark.long
@pytest.mark.parametrize("change", [_zero_in_one_row, *map(_times, (math.nan, 0, 4, -1))])
def test_damage_to_one_of_a_stack_is_told_of_that_one(
    change: Callable[[Tensor], Tensor], references: Path, tmp_path: Path
) -> None:
    folder, stored = Path(shutil.copytree(GOLDEN / "ct-nvfp4", tmp_path / "copy")), f"{UP_PROJ}.weight_scale"
    one(stored, change)(folder)
    units, how = units_in(folder), Pass({}, units_in(references / "ct-nvfp4"))
    alone = [examine(unit, how) for unit in units.values()]
    alike(examine_all(list(units.values()), how, 2), alone)
    damaged = inspect_checkpoint(folder, references / "ct-nvfp4")
    assert any(finding.subject.startswith(stored.removesuffix("_scale")) for finding in damaged.blocking)


@pytest.mark.parametrize("name", ["ct-nvfp4", "ct-w8a16-channel", "modelopt-fp8-default"])
def test_errors_are_those_of_a_plain_computation_in_float64(name: str, references: Path) -> None:
    units, theirs = units_in(GOLDEN / name), units_in(references / name)
    for unit, outcome in zip(units.values(), examine_all(list(units.values()), Pass({}, theirs), 1), strict=True):
        branch, wanted = (one.decode(one.read_parts()).double() for one in (unit, theirs[unit.name]))
        relative = float((branch - wanted).norm() / wanted.norm())
        assert math.isclose(outcome.error.relative_error, relative, rel_tol=1e-6)
        if unit.is_plain:
            assert math.isclose(
                outcome.error.gain, float((branch * wanted).sum() / wanted.square().sum()), rel_tol=1e-6
            )
