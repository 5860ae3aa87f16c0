"""A prefix computed once changes no score: states come out as without sharing, for fewer tokens, in fixed batches."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.checkpoints import kv_cache
from q36eval.engines import resident
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.batches import common_prefixes, prefix_of, scoring_batches, with_news
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.memory_plan import CHUNK_TOKENS
from q36eval.engines.shared_prefix import common_prefix
from q36eval.records import DeploymentIdentity
from tests.small_models import random_model

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
PREFIX = 150
LENT = PREFIX - PREFIX % CHUNK_TOKENS


def requests(count: int, seed: int = 1, group: str = "evals/1", prefix: int = PREFIX) -> list[ScoreRequest]:
    """Rows of 2 to 80 tokens after a common prefix, the last one to six of them asked for."""
    rng = random.Random(seed)
    common = tuple(rng.choices(range(2, 900), k=prefix))
    found = []
    for number in range(count):
        own = tuple(rng.choices(range(2, 900), k=rng.randint(2, 80)))
        first = prefix + len(own) - rng.randint(1, min(6, len(own)))
        found.append(ScoreRequest(f"{group}/{seed}/{number}", common + own, first, group, shared=prefix))
    return found


def unshared(asked: list[ScoreRequest]) -> list[ScoreRequest]:
    return [replace(request, shared=0) for request in asked]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> InProcessEngine:
    """Of a random float32 model of all kinds of layers, run in this process, where its passes can be counted."""
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    identity = DeploymentIdentity(
        checkpoint_sha256="0", tokenizer_sha256="0", chat_template_sha256="0", engine="test", engine_version="0"
    )
    tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=1, decode=lambda ids, **_: str(ids))
    return InProcessEngine(random_model(seed=7), tokenizer, identity)


def log_probs(engine: InProcessEngine, asked: list[ScoreRequest]) -> torch.Tensor:
    """What every request asked for, in nats, one after the other."""
    found = {scored.request.key: scored for scored in engine.score(asked)}
    assert [scored.error for scored in found.values()] == [None] * len(asked)
    rows = []
    for request in asked:
        states = found[request.key].hidden_states
        assert states is not None
        labels = torch.tensor(request.token_ids[request.first :])
        rows.append(torch.log_softmax(engine.logits(states), -1).gather(1, labels[:, None])[:, 0])
    return torch.cat(rows)


@contextmanager
def passes(engine: InProcessEngine) -> Iterator[list[tuple[int, int]]]:
    """The shapes of what goes through the model meanwhile."""
    seen: list[tuple[int, int]] = []

    def note(module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        seen.append((arguments[0].shape[0], arguments[0].shape[1]))

    handle = engine.model.model.embed_tokens.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.long
def test_scores_are_those_without_sharing_and_each_prefix_is_computed_once(engine: InProcessEngine) -> None:
    # one token after the prefix, everything after it asked for, and a prefix said to reach into what is asked for
    edges = [replace(r, key=f"edge {n}", token_ids=r.token_ids[: PREFIX + n]) for n, r in enumerate(requests(4)) if n]
    edges = [replace(request, first=PREFIX) for request in edges]
    edges.append(replace(edges[0], key="into", first=PREFIX - 40))
    asked = [*requests(60), *edges, *requests(30, seed=2)]
    with passes(engine) as seen:
        found = log_probs(engine, asked)
    # sums of float32 in another order
    assert torch.allclose(found, log_probs(engine, unshared(asked)), rtol=0, atol=1e-4)
    assert seen.count((1, LENT)) == 2
    assert sum(rows * width for rows, width in seen) < 0.6 * sum(len(request.token_ids) for request in asked)


@pytest.mark.long
def test_a_quantized_kv_cache_holds_the_prefix_quantized(engine: InProcessEngine) -> None:
    asked = requests(30)
    exact = log_probs(engine, asked)
    scale = torch.tensor([0.05])
    attention = next(name for name, _ in engine.model.named_modules() if name.endswith(".self_attn"))
    assert kv_cache.install(engine.model, "fp8_e4m3", {attention: {"k": scale, "v": scale}}) == 1
    whole, shared = log_probs(engine, unshared(asked)), log_probs(engine, asked)
    # a key in ten thousand lies on the edge between two FP8 values, and the last digit of float32 decides
    assert float((shared - whole).abs().mean()) < 0.02 * float((whole - exact).abs().mean())


def test_one_token_after_the_prefix_is_no_step_of_decoding(engine: InProcessEngine) -> None:
    asked = [replace(r, token_ids=r.token_ids[: LENT + 2], first=LENT + 1) for r in requests(20)]
    with passes(engine) as seen:
        found = log_probs(engine, asked)
    assert seen == [(1, LENT), (20, 2)]
    assert torch.allclose(found, log_probs(engine, unshared(asked)), rtol=0, atol=1e-4)


def test_batches_depend_on_what_is_asked_alone_and_keep_to_one_prefix_and_group() -> None:
    mine = [*requests(70), *requests(40, seed=2), *requests(3, seed=3), *unshared(requests(9, seed=4))]
    others = requests(50, group="evals/0")
    alone = list(scoring_batches(mine, 600))
    mixed = random.Random(5).sample(mine + others, len(mine) + len(others))
    assert [batch for batch in scoring_batches(mixed, 600) if batch[0].group == "evals/1"] == alone
    assert sorted(r.key for batch in alone for r in batch) == sorted(r.key for r in mine)
    sharing = [batch for batch in alone if common_prefix(batch)]
    assert len({request.key.split("/")[-2] for batch in sharing for request in batch}) == 2, "three rows share nothing"
    order = [prefix_of(batch[0]) for batch in sharing]
    assert sum(one != other for one, other in pairwise(order)) == 1, "a prefix is computed twice"
    assert all(len(batch) * (max(len(r.token_ids) for r in batch) - LENT) <= 600 for batch in sharing)
    known = {request.key for batch in alone[:2] for request in batch} | {alone[2][0].key}
    assert list(with_news(scoring_batches(mine, 600), known)) == alone[2:]


def test_a_request_knows_its_part_of_the_time(engine: InProcessEngine) -> None:
    found = list(engine.score(requests(20)))
    assert min(scored.seconds for scored in found) > 0
    assert max(scored.seconds for scored in found) < sum(scored.seconds for scored in found) / 4


def prompts(count: int, seed: int, group: str = "canaries/1") -> list[GenerationRequest]:
    """Of 1 to 90 tokens after a common prefix, every third one sampled."""
    return [
        GenerationRequest(
            f"answer to {r.key}",
            r.token_ids[: PREFIX + 1] if at == 5 else r.token_ids,
            max_new_tokens=4 + at % 11,
            group=group,
            temperature=0.8 if at % 3 == 0 else 0.0,
            shared=PREFIX,
        )
        for at, r in enumerate(requests(count, seed))
    ]


def answers(engine: InProcessEngine, asked: list[GenerationRequest]) -> dict[str, tuple[int, ...]]:
    found = list(engine.generate(asked))
    assert [answer.error for answer in found] == [None] * len(asked)
    return {answer.request.key: answer.token_ids for answer in found}


@pytest.mark.long
def test_answers_are_those_without_sharing_and_each_prefix_is_read_once(engine: InProcessEngine) -> None:
    asked = [*prompts(40, seed=1), *prompts(40, seed=2)]
    third = sorted(prompts(40, seed=3), key=lambda request: len(request.token_ids))
    asked += [third[0], third[-1]]
    with passes(engine) as seen:
        found = answers(engine, asked)
    with passes(engine) as whole:
        assert found == answers(engine, [replace(request, shared=0) for request in asked])
    assert len(set(found.values())) > 40, "a model that always says the same shows nothing"
    assert seen.count((1, LENT)) == 2, "the third has two rows, which differ by more tokens than are worth a step each"
    read = [sum(rows * width for rows, width in each if width > 1) for each in (seen, whole)]
    assert read[0] < 0.4 * read[1]


def test_what_is_worth_sharing_is_found_among_prompts_of_many_lengths() -> None:
    rng = random.Random(9)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(900), k=count)

    system = tokens(3 * CHUNK_TOKENS + 10)
    many = [system + tokens(100) for _ in range(20)]
    pair = tokens(CHUNK_TOKENS)
    few = [system + pair + tokens(5), system + pair]
    other = [tokens(4 * CHUNK_TOKENS)] * 2
    lone = [tokens(500), tokens(CHUNK_TOKENS - 1), []]
    found = common_prefixes([*many, *few, *other, *lone])
    # the two have another chunk in common, but what they share with twenty others spares more
    assert found == [3 * CHUNK_TOKENS] * 22 + [4 * CHUNK_TOKENS] * 2 + [0] * 3


@pytest.mark.long
def test_the_sandbox_answers_alike_after_a_long_context_that_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    sandbox = InProcessEngine.load(SANDBOX)
    sandbox.model.float()  # in BF16 left padding alone moves answers to a context that it has not learnt
    own = [
        request.token_ids
        for item in CanaryProbe(load_specs()).plan(sandbox.tokenizer)[:8]
        for request in item.generations
    ]
    context = tuple(token for ids in own for token in ids)[: 10 * CHUNK_TOKENS + 20]
    shared = common_prefixes([context + ids for ids in own])
    asked = [
        GenerationRequest(f"{at}", context + ids, 24, shared=length)
        for at, (ids, length) in enumerate(zip(own, shared, strict=True))
    ]
    with passes(sandbox) as seen:
        found = answers(sandbox, asked)
    assert seen[0] == (1, 10 * CHUNK_TOKENS)
    assert found == answers(sandbox, [replace(request, shared=0) for request in asked])
