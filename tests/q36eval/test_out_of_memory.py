"""What runs out of memory is computed in parts, to the same numbers; long rows are read in passes, to nearly those."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.engines import EngineSettings, logits, open_engine, resident
from q36eval.engines.base import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.engines.qwen3_5_moe.steps import StepMemory
from q36eval.engines.resident import OUT_OF_MEMORY_SAID, ResidentEngine
from q36eval.engines.shared_prefix import spans
from tests.q36eval.scoring import states_of

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"
FLOOR = 1e-4
"""Nats a token. On random tokens like these, left padding alone costs 9e-3 in BF16; this is float32."""


Opened = Callable[..., ResidentEngine]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """The sandbox's reference, in so many processes."""

    def of(workers: int = 1) -> ResidentEngine:
        monkeypatch.setattr(resident, "usable_workers", lambda: workers)
        return open_engine(EngineSettings(SANDBOX / "bf16"))

    return of


@pytest.fixture
def engine(opened: Opened) -> ResidentEngine:
    """In float32, where rows of a batch change each other's last digits alone."""
    engine = opened()
    engine.model.float()
    return engine


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(2, 900), k=count))


def texts() -> list[ScoreRequest]:
    return [ScoreRequest(f"text/{at}", tokens(40 + 13 * at, at), 5, "kl") for at in range(9)]


def questions() -> list[GenerationRequest]:
    """Every other one sampled."""
    return [
        GenerationRequest(f"q/{at}", tokens(30 + 7 * at, at), 6, temperature=0.9 * (at % 2), seed=3) for at in range(9)
    ]


@contextmanager
def before_every_pass(engine: ResidentEngine, check: Any) -> Iterator[None]:
    handle = engine.model.model.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def memory_for(
    engine: ResidentEngine, most: int, error: type[Exception] = torch.OutOfMemoryError
) -> Iterator[list[int]]:
    """Passes over more than so many tokens run out of memory; what the others had."""
    seen: list[int] = []

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        size = kwargs["input_ids"].numel()
        if size > most:
            raise error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes")
        seen.append(size)

    with before_every_pass(engine, check):
        yield seen


def scored(engine: Engine, asked: list[ScoreRequest]) -> dict[str, Scored]:
    return {each.request.key: each for each in engine.score(asked)}


def answered(engine: Engine, asked: list[GenerationRequest]) -> dict[str, Generated]:
    return {each.request.key: each for each in engine.generate(asked)}


def ids(answers: dict[str, Generated]) -> dict[str, tuple[int, ...]]:
    return {key: each.token_ids for key, each in answers.items()}


@pytest.mark.long
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_a_batch_that_runs_out_of_memory_is_computed_in_halves(engine: ResidentEngine, error: type[Exception]) -> None:
    whole, said = states_of(engine, texts()), list[str]()
    engine.report_to(said.append)
    with memory_for(engine, 300, error) as passes:
        parts = states_of(engine, texts())
    for key, each in parts.items():
        torch.testing.assert_close(each, whole[key], rtol=0, atol=1e-4)
    assert max(passes) <= 300
    assert len(passes) > 3
    assert said == [OUT_OF_MEMORY_SAID]
    assert engine.splits >= 3


@pytest.mark.long
def test_answers_of_split_batches_are_those_of_whole_ones(engine: ResidentEngine) -> None:
    whole = answered(engine, questions())
    with memory_for(engine, 200):
        parts = answered(engine, questions())
    assert ids(parts) == ids(whole)
    assert {each.rows for each in whole.values()} == {9}
    assert max(each.rows for each in parts.values()) <= 3


@pytest.mark.long
def test_steps_that_run_out_of_memory_in_their_own_memory_are_made_for_fewer_rows(engine: ResidentEngine) -> None:
    """As on a GPU, where steps have memory of their own: what this very batch took is nothing to be given back for."""
    whole, attempts = answered(engine, questions()), list[int]()

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows, width = kwargs["input_ids"].shape
        if width == 1 and rows > 4:
            attempts.append(rows)
            if len(attempts) > 20:
                raise AssertionError("the same batch was attempted again and again")
            raise torch.OutOfMemoryError("as if")

    engine._step_memory = StepMemory(engine.model)
    with before_every_pass(engine, check):
        parts = answered(engine, questions())
    assert ids(parts) == ids(whole)
    assert max(each.rows for each in parts.values()) <= 4
    assert engine.splits >= 1


@pytest.mark.long
def test_what_earlier_batches_left_is_given_back_before_a_batch_is_made_smaller(engine: ResidentEngine) -> None:
    whole, attempts = answered(engine, questions()), list[int]()
    engine._step_memory = StepMemory(engine.model)
    answered(engine, questions())
    assert engine._step_memory.bytes > 0

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        attempts.append(kwargs["input_ids"].shape[0])
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("as if")

    with before_every_pass(engine, check):
        again = answered(engine, questions())
    assert attempts[:2] == [9, 9]
    assert engine.splits == 0
    assert ids(again) == ids(whole)


@pytest.mark.long
def test_a_row_that_is_too_much_alone_is_read_in_smaller_passes(engine: ResidentEngine) -> None:
    asked = [ScoreRequest("long", tokens(900, 1), 3)]
    prompt = [GenerationRequest("long", tokens(900, 1), 5)]
    whole, answer = states_of(engine, asked)["long"], answered(engine, prompt)["long"]
    with memory_for(engine, 130) as passes:
        parts, told = states_of(engine, asked)["long"], answered(engine, prompt)["long"]
    assert 64 <= max(passes) <= 130
    assert_same_but_for_rounding(engine, parts, whole)
    assert told.token_ids == answer.token_ids


def assert_same_but_for_rounding(engine: ResidentEngine, one: torch.Tensor, other: torch.Tensor) -> None:
    p, q = (engine.logits(each).log_softmax(-1) for each in (one, other))
    assert float((p.exp() * (p - q)).sum(-1).mean()) < FLOOR
    assert float((one - other).abs().median()) < 1e-4


@pytest.mark.long
def test_what_fits_in_no_way_is_an_error_of_its_own_and_others_are_scored(engine: ResidentEngine) -> None:
    asked = [*texts(), ScoreRequest("long", tokens(900, 1), 3, "kl")]
    with memory_for(engine, 63 + 90):
        found = scored(engine, asked)
    assert {key for key, each in found.items() if each.error is not None} == set()
    with memory_for(engine, 60):
        found = scored(engine, [*asked, ScoreRequest("short", tokens(50, 2), 3, "kl")])
    assert found["long"].error == "900 tokens do not fit into the memory that the weights leave"
    assert not found["long"].permanent  # memory may be freed by whoever else uses it
    assert found["short"].error is None
    with memory_for(engine, 20):
        answers = answered(engine, questions()[:2])
    assert {each.finish_reason for each in answers.values()} == {"error"}
    assert {each.token_ids for each in answers.values()} == {()}


def test_other_errors_are_reported_as_before(engine: ResidentEngine) -> None:
    with before_every_pass(engine, lambda *_: (_ for _ in ()).throw(ValueError("no"))):
        errors = {each.error for each in scored(engine, texts()).values()}
    assert errors == {"engine: no"}
    assert engine.splits == 0


@pytest.mark.long
def test_workers_split_too_and_their_parent_hears_of_it(opened: Opened) -> None:
    engine = opened(workers=2)
    said: list[str] = []
    engine.report_to(said.append)
    asked = [replace(each, group=str(at % 2)) for at, each in enumerate(texts())]
    with memory_for(engine, 300):
        found = scored(engine, asked)
    assert [each.error for each in found.values()] == [None] * 9
    assert said == [OUT_OF_MEMORY_SAID]


def in_passes(engine: ResidentEngine, most: int) -> None:
    """As on a device with room for passes of so many tokens."""
    plan: MemoryPlan = engine.plan
    one_row = plan.costs.recurrent_row + plan.costs.conv_row
    batches = plan.costs.reading(1, most, 1000 - most) + one_row + 1000 * plan.costs.kv_token
    engine.__dict__["plan"] = replace(plan, batches=batches)
    assert engine.plan.chunk(1, 1000) == most


def test_passes_of_512_tokens_give_the_same_bits_on_a_cpu(opened: Opened) -> None:
    engine = opened()
    asked = [ScoreRequest("long", tokens(1000, 1), 3)]
    whole = states_of(engine, asked)["long"]
    in_passes(engine, 512)
    with memory_for(engine, 512) as passes:
        assert torch.equal(states_of(engine, asked)["long"], whole)
    assert passes == [512, 488]


@pytest.mark.long
def test_long_prompts_are_read_in_passes_and_answered_alike(engine: ResidentEngine) -> None:
    asked = [GenerationRequest(f"{at}", tokens(990 - 9 * at, at), 8) for at in range(3)]
    asked += [GenerationRequest("short", tokens(300, 9), 8)]
    whole = answered(engine, asked)
    assert len({each.token_ids for each in whole.values()}) == 4
    in_passes(engine, 256)
    with memory_for(engine, 2 * 256 + 1) as passes:
        parts = answered(engine, asked)
    assert max(passes) > 64
    assert engine.splits == 0
    assert ids(parts) == ids(whole)


@pytest.mark.long
def test_a_long_prefix_is_read_in_passes(engine: ResidentEngine) -> None:
    common = tokens(960, 1)
    asked = [ScoreRequest(f"{at}", common + tokens(9 + at, at + 2), 962, shared=960) for at in range(6)]
    whole = states_of(engine, asked)
    in_passes(engine, 256)
    with memory_for(engine, 256) as passes:
        parts = states_of(engine, asked)
    assert passes.count(256) == 3
    for key, each in parts.items():
        assert_same_but_for_rounding(engine, each, whole[key])


def test_no_pass_is_a_single_token_that_would_be_taken_for_a_step() -> None:
    for width in range(1, 400):
        for chunk in (64, 128):
            widths = [span.stop - span.start for span in spans(width, chunk)]
            assert sum(widths) == width
            assert all(each == chunk for each in widths[:-1])
            assert widths[-1] > 1 or width == 1


def test_logits_that_run_out_of_memory_are_made_once_earlier_batches_are_let_go(
    engine: ResidentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = torch.randn(3, engine.model.config.hidden_size)
    expected, own, tried = engine.logits(states), logits.float32_logits, list[int]()

    def once(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        tried.append(len(states))
        if len(tried) == 1:
            raise torch.OutOfMemoryError("as if")
        return own(states, weight)

    monkeypatch.setattr(logits, "float32_logits", once)
    assert torch.equal(engine.logits(states), expected)
    assert tried == [3, 3]
