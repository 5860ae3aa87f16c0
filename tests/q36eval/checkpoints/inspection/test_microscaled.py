"""MXFP4 and MXFP8: whichever way a producer rounds the shared exponent it is clean; damaged exponents are found."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints.inspection import Inspection, Section, inspect_checkpoint

from .damage import Tensors, edit_tensors
from .written import QUANTIZED

pytestmark = pytest.mark.long

REFERENCE = Path(__file__).parents[4] / "data" / "sandbox" / "bf16"
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TOPS = {"MXFP4": (6.0, 2), "MXFP8": (448.0, 8)}
EXPONENTS = {
    "down, as in the specification": lambda top, emax, largest: math.floor(math.log2(largest)) - emax,
    "near, as in compressed-tensors": lambda top, emax, largest: math.floor(math.log2(largest * 8 / 7)) - emax,
    "up, as in Model Optimizer": lambda top, emax, largest: math.ceil(math.log2(largest / top)),
}
VICTIM = "model.layers.3.mlp.experts.4.up_proj"
every_format = pytest.mark.parametrize("algorithm", TOPS)


def write(folder: Path, algorithm: str, rule: str = "up, as in Model Optimizer") -> list[str]:
    """The sandbox's reference in Model Optimizer's layout, group by group; returns the quantized weights' names."""
    shutil.copytree(REFERENCE, folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(name for name in tensors if QUANTIZED.search(name))
    top, emax = TOPS[algorithm]
    for name in names:
        groups = tensors[name].float().unflatten(1, (-1, 32))
        largest = groups.abs().amax(-1)
        exponent = [[EXPONENTS[rule](top, emax, value) for value in row] for row in largest.tolist()]
        power = torch.tensor(exponent)
        values = (groups / torch.exp2(power.float()).unsqueeze(-1)).clamp(-top, top).flatten(1)
        tensors[name] = fp4_bytes(values) if algorithm == "MXFP4" else values.to(torch.float8_e4m3fn)
        tensors[name.replace("weight", "weight_scale")] = (power + 127).to(torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    ignore = ["lm_head", "*.linear_attn.*", "*.mlp.gate", "*.shared_expert_gate"]
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ignore}
    (folder / "config.json").write_text(json.dumps(config))
    return names


def fp4_bytes(values: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the low nibble first; to nearest."""
    code = torch.bucketize(values.abs(), (FP4[1:] + FP4[:-1]) / 2) + 8 * (values < 0)
    return (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8)


def inspected(folder: Path) -> Inspection:
    return inspect_checkpoint(folder, REFERENCE, weights_workers=2)


@every_format
@pytest.mark.parametrize("rule", EXPONENTS)
def test_however_the_exponent_was_rounded_it_is_clean(algorithm: str, rule: str, tmp_path: Path) -> None:
    names = write(tmp_path / "copy", algorithm, rule)
    inspection = inspected(tmp_path / "copy")
    assert not inspection.blocking
    assert inspection.unbounded_weights == 0
    assert set(inspection.measured) == set(Section)
    rows = [row for row in inspection.coverage if row.stored.startswith("MX")]
    assert {(row.declared, row.stored) for row in rows} == {(f"{algorithm} g32", f"{algorithm} g32")}
    assert inspection.schemes == {algorithm: len(names)}


@every_format
@pytest.mark.parametrize(
    ("change", "where", "rules"),
    [
        (1, None, {"beyond-scheme", "error-outlier"}),
        (-1, None, {"beyond-scheme", "error-outlier"}),
        (1, (17, 3), {"beyond-scheme"}),
        (-2, (17, slice(None)), {"beyond-scheme"}),
    ],
    ids=["all doubled", "all halved", "one group doubled", "one row quartered"],
)
def test_wrong_exponents_are_found_where_they_are(
    algorithm: str, change: int, where: tuple[int, int] | None, rules: set[str], tmp_path: Path
) -> None:
    write(tmp_path / "copy", algorithm)

    def spoil(tensors: Tensors) -> None:
        stored = tensors[f"{VICTIM}.weight_scale"]
        stored[where if where is not None else ...] += change if change > 0 else 256 + change

    edit_tensors(tmp_path / "copy", spoil)
    found = [(finding.rule, finding.subject) for finding in inspected(tmp_path / "copy").blocking]
    assert {subject for _, subject in found} == {f"{VICTIM}.weight"}
    assert {rule for rule, _ in found} & rules
    assert "beyond-scheme" in {rule for rule, _ in found}


@every_format
@pytest.mark.parametrize(("value", "rule"), [(255, "non-finite"), (0, "zero-scale")])
def test_exponents_that_mean_no_number_need_no_reference(algorithm: str, value: int, rule: str, tmp_path: Path) -> None:
    write(tmp_path / "copy", algorithm)
    edit_tensors(tmp_path / "copy", lambda tensors: tensors[f"{VICTIM}.weight_scale"][5].fill_(value))
    found = [(finding.rule, finding.subject) for finding in inspect_checkpoint(tmp_path / "copy").blocking]
    assert (rule, f"{VICTIM}.weight_scale") in found
    assert {subject for _, subject in found} <= {f"{VICTIM}.weight_scale", f"{VICTIM}.weight"}


@pytest.mark.parametrize("algorithm", ["MXFP4", "MXFP8"])
def test_a_group_of_zeros_has_the_least_exponent_by_right(algorithm: str, tmp_path: Path) -> None:
    write(tmp_path / "copy", algorithm)

    def empty(tensors: Tensors) -> None:
        tensors[f"{VICTIM}.weight"].view(torch.uint8)[5] = 0
        tensors[f"{VICTIM}.weight_scale"][5] = 0

    edit_tensors(tmp_path / "copy", empty)
    assert not [f for f in inspect_checkpoint(tmp_path / "copy").blocking if f.section is Section.INTEGRITY]
