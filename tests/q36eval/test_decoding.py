"""Decoding equals transformers' own when greedy, row by row, whatever stops when; sampled rows keep to themselves."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from q36eval.engines.decoding import decode, fast_steps
from q36eval.engines.qwen3_5_moe.delta import delta_step
from q36eval.engines.qwen3_5_moe.steps import COLUMNS, StepMemory, columns_of
from q36eval.engines.sampling import Sampler, sample
from q36eval.engines.shared_prefix import LastPrefix
from tests.small_models import random_model, random_prompts

PADDING = 0


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


def alone(model: Any, prompt: list[int], budget: int, stop_ids: set[int]) -> list[int]:
    """transformers' own greedy generation, one prompt at a time and without padding."""
    from transformers import GenerationConfig

    settings = GenerationConfig(
        max_new_tokens=budget, do_sample=False, eos_token_id=sorted(stop_ids) or None, pad_token_id=PADDING
    )
    output = model.generate(input_ids=torch.tensor([prompt]), generation_config=settings)
    return [int(token) for token in output[0, len(prompt) :]]


@pytest.mark.long
def test_every_row_answers_as_if_it_were_alone(model: Any) -> None:
    prompts = random_prompts([3, 17, 40, 9, 70, 5, 33, 12, 64])
    budgets = [24, 1, 40, 7, 24, 40, 3, 24, 16]
    free = decode(model, prompts, budgets, set(), PADDING)
    assert [len(answer) for answer in free] == budgets
    # stop at tokens that some rows really produce, early in one and late in another
    stops = {free[0][4], free[5][20], free[2][30]}
    answers = decode(model, prompts, budgets, stops, PADDING)
    expected = [alone(model, prompt, budget, stops) for prompt, budget in zip(prompts, budgets, strict=True)]
    assert answers == expected
    assert min(map(len, answers)) < max(map(len, answers)), "nothing stopped early: the test shows nothing"


def sampler(key: str, temperature: float = 0.9) -> Sampler:
    return Sampler(temperature, 0.95, seed=7, key=key)


@pytest.mark.long
def test_a_sampled_answer_depends_on_its_own_seed_and_key_and_greedy_rows_stay_greedy(model: Any) -> None:
    prompts = random_prompts([12, 30, 7, 21], seed=4)
    budgets = [20, 12, 20, 20]
    greedy = decode(model, prompts, budgets, set(), PADDING)
    mixed = decode(model, prompts, budgets, set(), PADDING, [sampler("a"), None, sampler("b"), None])
    assert [mixed[1], mixed[3]] == [greedy[1], greedy[3]]
    alone = [
        decode(model, [prompts[row]], [20], set(), PADDING, [sampler(key)])[0] for row, key in ((0, "a"), (2, "b"))
    ]
    assert [mixed[0], mixed[2]] == alone
    assert mixed[0] != greedy[0]
    assert decode(model, prompts[:1], [20], set(), PADDING, [sampler("c")])[0] != mixed[0]


def test_ties_and_certainties_are_sampled() -> None:
    one = Sampler(0.7, 0.8, seed=3, key="edge")
    certain = torch.full((5, 6), -torch.inf)
    certain[:, 4] = 0.0
    assert sample(certain, [one] * 5).tolist() == [4] * 5
    # six alike at 0.8: the five of the lowest ids reach 5/6
    assert set(sample(torch.zeros(500, 6), [one] * 500).tolist()) == {0, 1, 2, 3, 4}


def test_a_step_is_that_of_transformers() -> None:
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_recurrent_gated_delta_rule

    rng = torch.Generator().manual_seed(6)
    batch, heads, key_width, width = 7, 3, 16, 24
    query, key = (torch.randn(batch, 1, heads, key_width, generator=rng) for _ in range(2))
    value = torch.randn(batch, 1, heads, width, generator=rng)
    state = torch.randn(batch, heads, key_width, width, generator=rng)
    gates = {"g": -3 * torch.rand(batch, 1, heads, generator=rng), "beta": torch.rand(batch, 1, heads, generator=rng)}
    found, after = delta_step(query, key, value, **gates, initial_state=state.clone())
    settings = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    expected, left = torch_recurrent_gated_delta_rule(query, key, value, **gates, initial_state=state, **settings)
    # sums of float32 in another order
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert torch.allclose(after, left, rtol=0, atol=1e-5)


def test_steps_are_ours_on_a_cpu_alone_and_only_while_decoding() -> None:
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

    own = modeling.torch_recurrent_gated_delta_rule
    with fast_steps(torch.device("cuda", 0)):
        assert modeling.torch_recurrent_gated_delta_rule is own
    with fast_steps(torch.device("cpu")):
        assert modeling.torch_recurrent_gated_delta_rule is delta_step
    assert modeling.torch_recurrent_gated_delta_rule is own


# -- steps in memory that never moves answer as those over a growing cache, whatever was left in that memory


@pytest.mark.long
def test_answers_are_those_over_a_growing_cache_for_every_batch_of_one_memory(model: Any) -> None:
    memory = StepMemory(model)
    prompts = random_prompts([3, 17, 40, 9, 70, 5, 33, 12, 64, 21, 8])
    budgets = [24, 1, 40, 7, 24, 40, 3, 24, 16, 30, 30]
    free = decode(model, prompts, budgets, set(), PADDING)
    stops = {free[0][4], free[5][20], free[2][30]}
    samplers = [Sampler(0.9, 0.95, seed=7, key=str(row)) if row % 3 == 0 else None for row in range(len(prompts))]
    cases: list[tuple[slice, set[int], Any]] = [
        (slice(None), set(), None),
        (slice(None), stops, None),
        (slice(2, 5), stops, None),  # fewer rows, in memory that others have written
        (slice(0, 9), set(), samplers[:9]),
    ]
    for chosen, stop_ids, drawn in cases:
        given = (prompts[chosen], budgets[chosen], stop_ids, PADDING)
        expected = decode(model, *given, copy.deepcopy(drawn))
        assert decode(model, *given, copy.deepcopy(drawn), memory=memory) == expected
    assert len({len(answer) for answer in free}) > 3, "all rows stopped together: nothing was shed"


@pytest.mark.long
def test_columns_grow_past_what_was_made_first_and_nothing_of_an_earlier_batch_is_seen(model: Any) -> None:
    memory = StepMemory(model)
    prompts, budgets = random_prompts([COLUMNS - 10, COLUMNS - 4]), [30, 160]
    expected = decode(model, prompts, budgets, set(), PADDING)
    assert decode(model, prompts, budgets, set(), PADDING, memory=memory) == expected
    assert {columns for _, columns in memory._ran} == {columns_of(COLUMNS), columns_of(COLUMNS + 1), 512}
    took = memory.bytes
    with torch.inference_mode():
        for pair in (*memory._keys.values(), *memory._states.values()):
            for left in pair:
                left.fill_(torch.nan)
    assert decode(model, prompts, budgets, set(), PADDING, memory=memory) == expected
    assert memory.bytes == took, "the same batch took more memory"
    assert all(columns <= columns_of(columns) < 1.51 * columns for columns in range(256, 40_000, 37))


def test_a_prefix_is_continued_too(model: Any) -> None:
    prefix, *rests = random_prompts([64, 9, 12, 10])
    budgets = [12, 9, 15]
    expected = [
        decode(model, [prefix + rest], [budget], set(), PADDING)[0] for rest, budget in zip(rests, budgets, strict=True)
    ]
    cache = LastPrefix(model).own_cache(tuple(prefix), len(rests))
    assert decode(model, rests, budgets, set(), PADDING, cache=cache, memory=StepMemory(model)) == expected


def test_a_part_that_was_exchanged_drops_what_was_recorded(model: Any) -> None:
    memory, cache = StepMemory(model), DynamicCache(config=model.config)
    with torch.inference_mode():
        model.model(input_ids=torch.ones(2, 5, dtype=torch.long), past_key_values=cache, use_cache=True)
    layers: list[Any] = cache.layers
    memory.reserve(layers, 2, 256)
    memory.graphs[2, 256] = (None, torch.empty(0))
    memory.reserve(layers, 2, 256)
    assert memory.graphs
    own = model.lm_head.weight
    try:
        model.lm_head.weight = torch.nn.Parameter(own.clone(), requires_grad=False)
        memory.reserve(layers, 2, 256)
    finally:
        model.lm_head.weight = own
    assert not memory.graphs, "a graph would compute with the head that is gone"
