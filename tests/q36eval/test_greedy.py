"""Greedy decoding equals transformers' own, row by row, whatever stops when."""

from typing import Any

import pytest
import torch

from q36eval.engines.greedy import decode_greedily

PADDING = 0


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import Qwen3_5MoeForCausalLM

    from app.sandbox.architecture import text_config

    torch.manual_seed(5)
    config = text_config("LFL", 4, hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32)
    # float32: in BF16 two shapes of one product may round differently, and a random model's argmax is often close
    return Qwen3_5MoeForCausalLM(config).float().eval()


def alone(model: Any, prompt: list[int], budget: int, stop_ids: set[int]) -> list[int]:
    """transformers' own greedy generation, one prompt at a time and without padding."""
    from transformers import GenerationConfig

    settings = GenerationConfig(
        max_new_tokens=budget, do_sample=False, eos_token_id=sorted(stop_ids) or None, pad_token_id=PADDING
    )
    output = model.generate(input_ids=torch.tensor([prompt]), generation_config=settings)
    return [int(token) for token in output[0, len(prompt) :]]


def test_every_row_answers_as_if_it_were_alone(model: Any) -> None:
    rng = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 1000, (n,), generator=rng).tolist() for n in (3, 17, 40, 9, 70, 5, 33, 12, 64)]
    budgets = [24, 1, 40, 7, 24, 40, 3, 24, 16]
    free = decode_greedily(model, prompts, budgets, set(), PADDING)
    assert [len(answer) for answer in free] == budgets
    # stop at tokens that some rows really produce, early in one and late in another
    stops = {free[0][4], free[5][20], free[2][30]}
    answers = decode_greedily(model, prompts, budgets, stops, PADDING)
    expected = [alone(model, prompt, budget, stops) for prompt, budget in zip(prompts, budgets, strict=True)]
    assert answers == expected
    assert min(map(len, answers)) < max(map(len, answers)), "nothing stopped early: the test shows nothing"
