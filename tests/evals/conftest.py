"""A random model of the sandbox's architecture with the sandbox's tokenizer, in float32."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import Engine
from q36eval.engines.in_process import InProcessEngine
from tests.evals.hub_mirror import use_cache, write_mirror
from tests.q36eval.run.runner import IDENTITY
from tests.small_models import text_config


@pytest.fixture(scope="session")
def tiny_model(tokenizer: Any) -> Any:
    """Large enough weights that answers differ from prompt to prompt and no two choices tie."""
    import torch
    from transformers import GenerationConfig, Qwen3_5MoeForCausalLM

    torch.manual_seed(3)
    config = text_config(
        "LFL",
        num_experts=4,
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    model = Qwen3_5MoeForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    return model


@pytest.fixture(scope="session")
def engine(tiny_model: Any, tokenizer: Any) -> Engine:
    return InProcessEngine(tiny_model, tokenizer, IDENTITY)


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with a few rows of ours."""
    home = tmp_path_factory.mktemp("mirror")
    write_mirror(home)
    return home


@pytest.fixture
def filled_cache(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process finds the mirror where it looks for the cache, and no network."""
    return use_cache(mirror, monkeypatch)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither a cache nor a network."""
    return use_cache(tmp_path / "nothing", monkeypatch)
