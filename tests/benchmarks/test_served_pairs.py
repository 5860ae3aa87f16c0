"""The model that two GPUs can split computes what the sandbox's does."""

from pathlib import Path

import pytest
import torch

from benchmarks.served_pairs import with_key_heads
from q36eval.checkpoints import load_model
from tests.q36eval.openai.server import SANDBOX


def test_a_key_head_that_stands_twice_changes_nothing_but_rounding(tmp_path: Path) -> None:
    ids = torch.randint(0, 1000, (1, 64), generator=torch.Generator().manual_seed(5))
    wide = with_key_heads(SANDBOX, 2, tmp_path / "wide")
    models = [load_model(folder, dtype=torch.float32).model for folder in (SANDBOX, wide)]
    assert [model.config.linear_num_key_heads for model in models] == [1, 2]
    with torch.inference_mode():
        one, two = (model(ids).logits for model in models)
    assert (one - two).abs().max() < 1e-4 * one.abs().max()  # float32 sums of another order; 3e-6 where it was seen
    with pytest.raises(ValueError, match="no one key head"):
        with_key_heads(wide, 2, tmp_path / "wider")
