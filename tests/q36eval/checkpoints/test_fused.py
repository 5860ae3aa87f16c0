"""A branch loaded as vLLM fuses it: values are off by the factor that its one global scale makes, all others equal."""

import shutil
from pathlib import Path

import pytest
import torch

from q36eval.checkpoints import load_model
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.engines import EngineSettings, identity_of, open_engine
from q36eval.errors import UsageError
from tests.branches import folder_of
from tests.raising import raises

from .inspection.damage import edit_tensors, rescale

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox"
LAYER = "model.layers.3.mlp.experts"
EXPERTS = 6
HALF = 0.5
"""What the up projections' global scales are multiplied by."""


@pytest.fixture(scope="module", params=["main", "nvfp4-modelopt"])
def rescaled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer's up projections with global scales of their own, and the same values as before."""
    folder = Path(shutil.copytree(folder_of(request.param), tmp_path_factory.mktemp("rescaled") / request.param))
    for expert in range(EXPERTS):
        edit_tensors(folder, rescale(f"{LAYER}.{expert}.up_proj", HALF))
    return folder


@pytest.mark.long
def test_up_projections_come_out_by_the_gates_scale_and_the_rest_as_it_is(rescaled: Path) -> None:
    stored, served = load_model(rescaled), load_model(rescaled, as_served="vllm")
    assert (stored.report.as_served, served.report.as_served) == (0, EXPERTS)
    mine, theirs = (dict(loaded.model.named_parameters()) for loaded in (stored, served))
    name = f"{LAYER}.gate_up_proj"
    gates, ups = (tuple(half.chunk(2, dim=1)) for half in (mine.pop(name), theirs.pop(name)))
    assert torch.equal(gates[0], ups[0])
    # compressed-tensors divides by the gate's, twice as large; Model Optimizer multiplies by it, half as large
    assert torch.equal(ups[1], gates[1] * HALF)
    assert [other for other in mine if not torch.equal(mine[other], theirs[other])] == []
    (finding,) = inspect_checkpoint(rescaled, SANDBOX / "bf16").blocking
    error = float((ups[1] - gates[1]).float().norm() / gates[1].float().norm())
    assert f"in {EXPERTS} of " in finding.message
    assert f"up to {error:.1%} off" in finding.message


@pytest.mark.long
def test_where_scales_agree_nothing_changes() -> None:
    stored, served = (load_model(folder_of("main"), as_served=engine) for engine in (None, "vllm"))
    assert served.report.as_served == 0
    theirs = dict(served.model.named_parameters())
    assert all(torch.equal(value, theirs[name]) for name, value in stored.model.named_parameters())


def test_it_is_another_deployment() -> None:
    settings = [EngineSettings(folder_of("main"), as_served=engine) for engine in (None, "vllm")]
    plain, fused = (identity_of(one) for one in settings)
    assert plain.differing_fields(fused) == ["settings"]
    assert set(fused.settings.items()) - set(plain.settings.items()) == {("as_served", "vllm")}
    assert open_engine(settings[1]).identity == fused
    for opens in (identity_of, open_engine):
        with raises(UsageError, "option-value", "'sglang'", "vllm"):
            opens(EngineSettings(folder_of("main"), as_served="sglang"))
