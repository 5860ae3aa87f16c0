"""Steps in memory that never moves answer as those over a growing cache do, whatever was left in that memory."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from q36eval.engines.decoding import decode
from q36eval.engines.qwen3_5_moe.steps import COLUMNS, StepMemory, columns_of
from q36eval.engines.sampling import Sampler
from q36eval.engines.shared_prefix import LastPrefix
from tests.small_models import random_model

PADDING = 0


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


def prompts_of(lengths: list[int], seed: int = 3) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 1000, (length,), generator=rng).tolist() for length in lengths]


@pytest.mark.long
def test_answers_are_those_over_a_growing_cache_for_every_batch_of_one_memory(model: Any) -> None:
    memory = StepMemory(model)
    prompts = prompts_of([3, 17, 40, 9, 70, 5, 33, 12, 64, 21, 8])
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
    prompts, budgets = prompts_of([COLUMNS - 10, COLUMNS - 4]), [30, 160]
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
    prefix, *rests = prompts_of([64, 9, 12, 10])
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
