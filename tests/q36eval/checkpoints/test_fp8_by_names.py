"""FP8 by stored names: every architecture loads equal to its decoded weights, all of which are accounted for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints.loader import load_model
from tests.q36eval.checkpoints.architectures import NAMES, saved
from tests.q36eval.checkpoints.fp8 import EXPERT, quantize

FUSED = {"gpt_oss", "granitemoe", "granitemoehybrid", "llama4_text"}
"""Architectures whose experts are stored as one tensor, which no producer of this format quantizes."""


@pytest.mark.parametrize("name", NAMES)
def test_fp8_weights_come_where_transformers_puts_the_decoded_ones(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder, plain = saved(name, tmp_path / "model"), saved(name, tmp_path / "plain")
    decoded = quantize(folder)
    file = plain / "model.safetensors"
    save_file(load_file(file) | decoded, file, metadata={"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).state_dict()
    loaded = load_model(folder)
    ours = loaded.model.state_dict()
    assert [each for each, value in theirs.items() if not torch.equal(value, ours[each])] == []
    assert sum(formats.get("float-quantized", 0) for formats in loaded.report.formats.values()) == len(decoded)
    assert bool(decoded) == (name != "gpt2")
    has_experts = loaded.report.formats.get("routed experts") is not None
    assert any(EXPERT.search(each) for each in decoded) == (has_experts and name not in FUSED)
