"""Decoding equals transformers' own when greedy, row by row, whatever stops when; sampled rows keep to themselves.

Coupled sampling: right distributions, the same numbers for the same request, and few draws that differ.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats
from transformers import DynamicCache

from q36eval.engines import sampling
from q36eval.engines.answer_endings import end_ids
from q36eval.engines.base import Coupling
from q36eval.engines.decoding import decode, fast_steps
from q36eval.engines.qwen3_5_moe.delta import delta_step
from q36eval.engines.qwen3_5_moe.steps import COLUMNS, StepMemory, columns_of
from q36eval.engines.sampling import Sampler, gumbel_noise, sample
from q36eval.engines.shared_prefix import LastPrefix
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises
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
    told: list[int] = []
    free = decode(model, prompts, budgets, set(), PADDING, wrote=told.append)
    assert [len(answer) for answer in free] == budgets
    assert (sum(told), len(told)) == (sum(budgets), max(budgets)), "every token is told of, step by step"
    # stop at tokens that some rows really produce, early in one and late in another
    stops = {free[0][4], free[5][20], free[2][30]}
    answers = decode(model, prompts, budgets, stops, PADDING)
    expected = [alone(model, prompt, budget, stops) for prompt, budget in zip(prompts, budgets, strict=True)]
    assert answers == expected
    assert min(map(len, answers)) < max(map(len, answers)), "nothing stopped early: the test shows nothing"


def keyed(key: str, temperature: float = 0.9) -> Sampler:
    return Sampler(temperature, 0.95, seed=7, key=key)


@pytest.mark.long
def test_a_sampled_answer_depends_on_its_own_seed_and_key_and_greedy_rows_stay_greedy(model: Any) -> None:
    prompts = random_prompts([12, 30, 7, 21], seed=4)
    budgets = [20, 12, 20, 20]
    greedy = decode(model, prompts, budgets, set(), PADDING)
    mixed = decode(model, prompts, budgets, set(), PADDING, [keyed("a"), None, keyed("b"), None])
    assert [mixed[1], mixed[3]] == [greedy[1], greedy[3]]
    alone = [decode(model, [prompts[row]], [20], set(), PADDING, [keyed(key)])[0] for row, key in ((0, "a"), (2, "b"))]
    assert [mixed[0], mixed[2]] == alone
    assert mixed[0] != greedy[0]
    assert decode(model, prompts[:1], [20], set(), PADDING, [keyed("c")])[0] != mixed[0]


def test_ties_and_certainties_are_sampled() -> None:
    one = Sampler(0.7, 0.8, seed=3, key="edge")
    certain = torch.full((5, 6), -torch.inf)
    certain[:, 4] = 0.0
    assert sample(certain, [one] * 5).tolist() == [4] * 5
    # six alike at 0.8: the five of the lowest ids reach 5/6
    assert set(sample(torch.zeros(500, 6), [one] * 500).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("configured", ["7", [7, "x"], True, [7.5], {"a": 7}, [[7]]])
def test_an_end_that_is_not_a_token_id_is_the_fault_of_the_checkpoint(configured: Any) -> None:
    with raises(CorruptCheckpointError, "ends-malformed", "folder", "eos_token_id"):
        end_ids(configured, SimpleNamespace(eos_token_id=2, name_or_path="folder"))


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


# -- coupled sampling

DRAWS = 10_000


def samplers(count: int, coupling: Coupling, **changed: float) -> list[Sampler]:
    settings = {"temperature": 1.0, "top_p": 1.0, "seed": 7} | changed
    return [Sampler(key=f"prompt {n}", coupling=coupling, **settings) for n in range(count)]  # type: ignore[arg-type]


def drawn(logits: torch.Tensor, coupling: Coupling, **changed: float) -> torch.Tensor:
    return sample(logits.expand(DRAWS, -1), samplers(DRAWS, coupling, **changed))


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_draws_follow_the_nucleus(coupling: Coupling) -> None:
    """A fixed seed, so this does not flicker; one seed in ten thousand would fail by chance."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -8.0])
    counts = torch.bincount(drawn(logits, coupling, temperature=0.8, top_k=4), minlength=6)
    assert counts[4:].sum() == 0
    expected = (logits[:4].double() / 0.8).softmax(-1) * DRAWS
    assert stats.chisquare(counts[:4].numpy(), expected.numpy()).pvalue > 1e-4
    # 0.95 of the whole are held by the first four tokens, 0.90 by three
    assert drawn(logits, coupling, top_p=0.9).max() == 3
    assert drawn(logits, coupling, top_p=0.5).max() == 0


def test_the_noise_is_standard_gumbel_and_independent_between_tokens_and_steps() -> None:
    one = Sampler(1.0, 1.0, 0, "k", coupling="gumbel")
    noise = []
    for _ in range(3):
        noise.append(gumbel_noise(torch.arange(DRAWS).unsqueeze(0), [one])[0])
        one.took(5)
    for each in noise:
        assert stats.kstest(each.numpy(), stats.gumbel_r.cdf).pvalue > 1e-4
    pairs = ((noise[0], noise[1]), (noise[1], noise[2]), (noise[0][1:], noise[0][:-1]))
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4 / DRAWS**0.5


@pytest.mark.long
def test_two_deployments_differ_no_more_than_the_bound_and_less_than_by_inverse_cdf() -> None:
    torch.manual_seed(3)
    logits = torch.randn(200) * 1.5
    other = logits + torch.randn(200) * 0.1
    variation = float((logits.double().softmax(-1) - other.double().softmax(-1)).abs().sum() / 2)
    differing = {
        coupling: float((drawn(logits, coupling) != drawn(other, coupling)).double().mean())
        for coupling in ("gumbel", "inverse_cdf")
    }
    # nobody can differ in fewer than `variation` of the draws
    error = 4 * (variation / DRAWS) ** 0.5
    assert variation - error < differing["gumbel"] < 2 * variation / (1 + variation) + error
    assert differing["gumbel"] < 0.5 * differing["inverse_cdf"]


def test_a_token_answered_before_is_penalized_and_no_other() -> None:
    logits = torch.tensor([[3.0, 2.9, -9.0]])
    for coupling in ("gumbel", "inverse_cdf"):
        one = Sampler(1e-4, 1.0, 0, "k", presence_penalty=1.0, coupling=coupling)
        assert int(sample(logits, [one])) == 0
        one.took(0)
        assert int(sample(logits, [one])) == 1
        one.took(1)
        assert int(sample(logits, [one])) == 0


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_no_token_is_drawn_of_what_is_no_distribution(coupling: Coupling) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        sample(logits, [Sampler(1.0, 1.0, 1, key, coupling=coupling) for key in "ab"])


@pytest.mark.parametrize("coupling", ["inverse_cdf", "gumbel"])
@pytest.mark.parametrize(("top_k", "top_p"), [(20, 0.95), (0, 0.95), (0, 1.0), (3, 1.0), (5000, 0.3)])
@pytest.mark.parametrize("shape", ["peaked", "tied", "flat"])
def test_the_likeliest_tokens_alone_give_what_a_sort_of_all_gives(
    coupling: Coupling, top_k: int, top_p: float, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where many are equally likely, at the edge of what is ranked too."""
    generator = torch.Generator().manual_seed(5)
    logits = {
        "peaked": torch.randn(8, 3000, generator=generator) * 4,
        "tied": torch.randint(0, 4, (8, 3000), generator=generator).float() * 3,
        "flat": torch.zeros(8, 3000),
    }[shape]
    by_hand = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True).indices
    ranked, widths = sampling._ranked, []

    def all_of_them(likely: torch.Tensor, order: torch.Tensor, sizes: Any, top_p: Any, width: int) -> Any:
        _, narrow, complete = ranked(likely, order, sizes, top_p, width)
        whole = complete.squeeze(-1)
        assert torch.equal(narrow[whole], by_hand[whole, : narrow.shape[-1]])
        widths.append(width)
        shares, ids, _ = ranked(likely, order, sizes, top_p, likely.shape[-1])
        assert torch.equal(ids, by_hand)
        return shares, ids, complete

    def draw() -> torch.Tensor:
        return sample(logits, [Sampler(0.7, top_p, 3, f"r{row}", top_k=top_k, coupling=coupling) for row in range(8)])

    short = draw()
    monkeypatch.setattr(sampling, "_ranked", all_of_them)
    assert torch.equal(draw(), short)
    assert (widths[0] == 3000) == ((top_k, top_p) == (0, 1.0))


@pytest.mark.parametrize("coupling", ["inverse_cdf", "gumbel"])
def test_what_waits_in_a_batch_of_all_kinds_changes_no_draw(coupling: Coupling) -> None:
    """Rows with other nuclei, couplings and penalties beside it, and one by one."""
    generator = torch.Generator().manual_seed(6)
    logits = (torch.randn(6, 4000, generator=generator) * 3).bfloat16().float()

    def samplers() -> list[Sampler]:
        other: Coupling = "gumbel" if coupling == "inverse_cdf" else "inverse_cdf"
        made = [
            Sampler(0.6, 0.95, 1, "a", top_k=20, coupling=coupling),
            Sampler(1.0, 1.0, 1, "b", coupling=other),
            Sampler(1.3, 0.7, 1, "c", coupling=coupling),
            Sampler(0.6, 0.95, 1, "d", top_k=20, coupling=coupling, presence_penalty=1.5),
            Sampler(2.0, 0.99, 1, "e", top_k=7, coupling=other),
            Sampler(0.6, 0.95, 1, "f", top_k=20, coupling=coupling),
        ]
        for sampler, liked in zip(made, logits.argmax(-1).tolist(), strict=True):
            sampler.took(liked)
        return made

    together, alone = samplers(), samplers()
    for _ in range(5):
        drawn = sample(logits, together)
        assert drawn.tolist() == [int(sample(logits[row : row + 1], [alone[row]])) for row in range(6)]
