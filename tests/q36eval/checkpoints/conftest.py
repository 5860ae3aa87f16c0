"""A tiny random model of the judged architecture, saved as transformers saves it."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.small_models import text_config

# the configuration that tests and golden checkpoints share lies beside the latter
sys.path.insert(0, str(Path(__file__).parents[2] / "assets"))


@pytest.fixture(scope="session")
def bf16_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3_5MoeForCausalLM

    config = text_config(
        "LF",
        num_experts=4,
        vocab_size=160,
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )
    torch.manual_seed(7)
    model = Qwen3_5MoeForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger weights and norms that are not at rest, so that a swapped tensor shows in the output.
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.05))
    folder = tmp_path_factory.mktemp("checkpoints") / "bf16"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models that llama.cpp converted to the golden GGUFs, by name."""
    from golden_gguf import model

    folder = tmp_path_factory.mktemp("gguf")
    for name in ("names", "wide"):
        model(folder / name, name)
    return {name: folder / name for name in ("names", "wide")}


@pytest.fixture
def folder(bf16_folder: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(bf16_folder, tmp_path / "copy"))
