"""Recorded steps answer as unrecorded ones. Runs where there is a GPU."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from q36eval.engines.decoding import decode
from q36eval.engines.steps import StepMemory

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU")


def behind_the_likeliest(model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> float:
    """The mean of how far the logit of each answer's tokens lies below the greatest one by `model`."""
    behind = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer], device=model.device)
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(states)[0, len(prompt) - 1 : -1]
        behind.append(logits.amax(-1) - logits.gather(-1, ids[:, len(prompt) :].T).squeeze(-1))
    return float(torch.cat(behind).mean())


@torch.inference_mode()
def test_recorded_steps_answer_as_well_as_those_over_a_growing_cache() -> None:
    """By the same model in float32: in BF16 either takes the other of two tokens that are nearly as likely."""
    from transformers import Qwen3_5MoeForCausalLM

    from tests.small_models import text_config

    torch.manual_seed(5)
    config = text_config("LFL", 4, hidden_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    model = Qwen3_5MoeForCausalLM(config).bfloat16().to(DEVICE).eval().requires_grad_(False)
    exact = copy.deepcopy(model).float()
    rng = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 1000, (n,), generator=rng).tolist() for n in (3, 17, 40, 9, 230, 5, 33, 12, 64)]
    budgets = [60, 1, 140, 30, 70, 90, 20, 24, 140]
    growing = behind_the_likeliest(exact, prompts, decode(model, prompts, budgets, set(), 0))
    drawn = torch.randint(2, 1000, (sum(budgets),), generator=rng).split(budgets)
    assert growing < 0.1 * behind_the_likeliest(exact, prompts, [tokens.tolist() for tokens in drawn])
    memory = StepMemory(model)
    for _ in range(2):
        found = decode(model, prompts, budgets, set(), 0, memory=memory)
        assert memory.not_recorded is None
        assert len(memory.graphs) > 3
        assert [len(answer) for answer in found] == budgets
        assert behind_the_likeliest(exact, prompts, found) < 2 * growing
