"""GPTQ as its configuration declares it module by module: other widths, and zero-points that need not be symmetric."""

import shutil
from pathlib import Path

import pytest

from q36eval.app.sandbox import build
from q36eval.checkpoints.inspection import inspect_checkpoint

from . import written
from .damage import edit_json, edit_tensors

SANDBOX = Path(__file__).parents[4] / "data" / "sandbox"
EXPERTS = r"layers\.3\.mlp\.experts\.\d+\.\w+_proj"


@pytest.mark.long
@pytest.mark.parametrize(("bits", "sym"), [(3, True), (4, False), (3, False), (8, True)])
def test_what_an_override_declares_is_clean(bits: int, sym: bool, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(build("gptq-int4", SANDBOX, tmp_path / "built"), folder)
    written.gptq(SANDBOX / "bf16", folder, EXPERTS, bits, sym)
    assert not inspect_checkpoint(folder, SANDBOX / "bf16", weights_workers=2).blocking


def test_an_asymmetric_zero_point_declared_symmetric_is_found(tmp_path: Path) -> None:
    """By the override alone, of which the rest of the checkpoint knows nothing; and in 3 bits across two words."""
    folder = tmp_path / "copy"
    shutil.copytree(build("gptq-int4", SANDBOX, tmp_path / "built"), folder)
    written.gptq(SANDBOX / "bf16", folder, EXPERTS, 3, True)
    edit_json(folder, "config.json", lambda config: config["quantization_config"].update(sym=False))
    name = "model.layers.3.mlp.experts.4.up_proj.qzeros"
    edit_tensors(folder, lambda tensors: tensors[name][0, :1].bitwise_xor_(1 << 30))
    found = inspect_checkpoint(folder, SANDBOX / "bf16", weights_workers=2).blocking
    assert [finding.subject for finding in found if finding.rule == "zero-point"] == [name]
