"""Experts stored as one tensor of three axes: as published, and as transformers may write those of any model."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.reader import Checkpoint, TensorEntry, open_checkpoint
from tests.q36eval.checkpoints.architectures import tiny_model
from tests.q36eval.checkpoints.test_mxfp4 import found

PUBLISHED = ("gpt_oss", "granitemoe", "llama4_text")
WRITTEN = ("deepseek_v3", "olmoe", "qwen3_5_moe_text", "qwen3_moe")
EXPERTS = (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")


@pytest.mark.parametrize("name", [*PUBLISHED, *WRITTEN])
def test_experts_together_are_read_once_and_appear_in_an_inspection(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(name)
    model.save_pretrained(tmp_path, save_original_format=name in PUBLISHED)
    stored = open_checkpoint(tmp_path).tensors
    together = [each for each, entry in stored.items() if len(entry.shape) == 3 and any(one in each for one in EXPERTS)]
    assert len(together) >= 2
    read: list[tuple[int, int]] = []
    own = Checkpoint.read_into

    def counted(checkpoint: Checkpoint, entry: TensorEntry, target: memoryview) -> None:
        read.append((entry.begin, entry.end))
        own(checkpoint, entry, target)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "read_into", counted)
        ours = load_model(tmp_path).model.state_dict()
    assert [key for key, value in model.state_dict().items() if not torch.equal(value, ours[key])] == []
    bounds = sorted((entry.begin, entry.end) for entry in stored.values())
    read.sort()
    assert sum(end - begin for begin, end in read) == sum(end - begin for begin, end in bounds)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(read))
    inspection = inspect_checkpoint(tmp_path, tmp_path)
    assert found(inspection) == {("nothing-quantized", "config.json")}
    values = sum(each.numel() for key, each in model.named_parameters() if any(one in key for one in EXPERTS))
    assert sum(row.values for row in inspection.coverage if row.tensor_class == "routed experts") == values
