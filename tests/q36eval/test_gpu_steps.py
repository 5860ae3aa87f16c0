"""Recorded steps answer as unrecorded ones. Runs where there is a GPU."""

import pytest
import torch

from q36eval.engines.decoding import decode
from q36eval.engines.steps import StepMemory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU")


def test_recorded_steps_answer_as_those_over_a_growing_cache() -> None:
    from transformers import Qwen3_5MoeForCausalLM

    from benchmarks.sandbox.architecture import text_config

    torch.manual_seed(5)
    config = text_config("LFL", 4, hidden_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    model = Qwen3_5MoeForCausalLM(config).bfloat16().cuda().eval().requires_grad_(False)
    rng = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 1000, (n,), generator=rng).tolist() for n in (3, 17, 40, 9, 230, 5, 33, 12, 64)]
    budgets = [60, 1, 140, 30, 70, 90, 20, 24, 140]
    expected = decode(model, prompts, budgets, set(), 0)
    memory = StepMemory(model)
    for _ in range(2):
        found = decode(model, prompts, budgets, set(), 0, memory=memory)
        assert memory.not_recorded is None
        assert len(memory.graphs) > 3
        # a random model in BF16: where two tokens are nearly as likely, the rest of a row differs
        agreeing = sum(
            next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
            for one, other in zip(found, expected, strict=True)
        )
        assert agreeing > 0.6 * sum(budgets)
