"""A prefix computed once changes no score: states come out as without sharing, for fewer tokens, in fixed batches.

What shares a batch depends on a probe's own requests alone; its limit is kept and is part of who answered. A perturbed
engine computes the same thing another way: close to an independent computation, by another path.
"""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from q36eval.checkpoints import kv_cache
from q36eval.engines import Engine, EngineSettings, identity_of, open_engine, perturbation, resident
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.batches import common_prefixes, prefix_of, scoring_batches, with_news
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.memory_plan import CHUNK_TOKENS
from q36eval.engines.perturbation import (
    Decoded,
    InOtherCompany,
    LeftPadded,
    OneByOne,
    OnGPU,
    OtherKernels,
    perturbations,
)
from q36eval.engines.shared_prefix import common_prefix
from tests.q36eval.scoring import log_probs_of, passes, states_of
from tests.q36eval.test_references import IDENTITY
from tests.small_models import random_model, random_prompts

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
    tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=1, decode=lambda ids, **_: str(ids))
    return InProcessEngine(random_model(seed=7), tokenizer, IDENTITY)


def log_probs(engine: InProcessEngine, asked: list[ScoreRequest]) -> torch.Tensor:
    """What every request asked for, in nats, one after the other."""
    found = log_probs_of(engine, asked)
    labels = {request.key: torch.tensor(request.token_ids[request.first :]) for request in asked}
    return torch.cat([found[key].gather(1, labels[key][:, None])[:, 0] for key in labels])


@pytest.mark.long
def test_scores_are_those_without_sharing_and_each_prefix_is_computed_once(engine: InProcessEngine) -> None:
    # one token after the prefix, everything after it asked for, and a prefix said to reach into what is asked for
    edges = [replace(r, key=f"edge {n}", token_ids=r.token_ids[: PREFIX + n]) for n, r in enumerate(requests(4)) if n]
    edges = [replace(request, first=PREFIX) for request in edges]
    edges.append(replace(edges[0], key="into", first=PREFIX - 40))
    asked = [*requests(60), *edges, *requests(30, seed=2)]
    with passes(engine.model) as seen:
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
    with passes(engine.model) as seen:
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
    with passes(engine.model) as seen:
        found = answers(engine, asked)
    with passes(engine.model) as whole:
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


# -- how many rows share a batch


def short_prompts(engine: Engine, count: int, group: str = "") -> list[GenerationRequest]:
    text = "Text, který má pokračovat, a pak ještě kousek. "
    ids = tuple(engine.tokenizer.encode(text, add_special_tokens=False))
    return [GenerationRequest(f"{group}/{at}", ids[at % 4 :], 2, group=group) for at in range(count)]


def test_a_batch_holds_at_most_so_many_rows_and_an_answer_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    engine = open_engine(EngineSettings(SANDBOX, batch_rows=4))
    answers = list(
        engine.generate([*short_prompts(engine, 9), *short_prompts(engine, 1, "alone"), *short_prompts(engine, 3, "b")])
    )
    assert [a.error for a in answers] == [None] * 13
    rows = {a.request.key: a.rows for a in answers}
    assert sorted(rows[f"/{at}"] for at in range(9)) == [1, 4, 4, 4, 4, 4, 4, 4, 4]
    assert rows["alone/0"] == 1
    assert {rows[f"b/{at}"] for at in range(3)} == {3}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_is_resumed_tells_what_its_known_rows_took(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: workers)
    engine = open_engine(EngineSettings(SANDBOX, batch_rows=4))
    (*known, new) = short_prompts(engine, 4)
    (answer,) = engine.generate([*known, new], known={request.key for request in known})
    assert answer.request == new
    assert answer.repeated_seconds > answer.seconds, "three rows of four"
    whole = list(engine.generate([*known, new]))
    assert all(answer.repeated_seconds == 0 for answer in whole)
    assert [each.token_ids for each in whole if each.request == new] == [answer.token_ids]


def test_only_a_batch_size_that_is_asked_for_is_part_of_the_identity() -> None:
    own, four = (identity_of(EngineSettings(SANDBOX, batch_rows=rows)) for rows in (None, 4))
    assert "batch_rows" not in own.settings
    assert four.settings == own.settings | {"batch_rows": "4"}
    assert own.differing_fields(four) == ["settings"]


# -- perturbed engines

TOKENIZER = SimpleNamespace(eos_token_id=1, pad_token_id=0)
SAME = 2e-4
"""Greatest difference of a final hidden state (of size 1 to 4) that another order of float32 sums may leave."""


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


@pytest.fixture(scope="module")
def texts() -> list[ScoreRequest]:
    drawn = random_prompts([3, 17, 40, 130, 70, 5, 66, 12])
    return [ScoreRequest(f"{len(ids)}", tuple(ids), 1 + len(ids) // 4) for ids in drawn]


@pytest.fixture(scope="module")
def alone(model: Any, texts: list[ScoreRequest]) -> dict[str, torch.Tensor]:
    """The scored states by transformers alone: one document at a time, whole, unpadded, without a cache."""
    with torch.inference_mode():
        return {
            r.key: model.model(input_ids=torch.tensor([r.token_ids])).last_hidden_state[0, r.first - 1 : -1]
            for r in texts
        }


@pytest.mark.long
@pytest.mark.parametrize("kind", [InProcessEngine, LeftPadded, OneByOne, InOtherCompany, Decoded, OtherKernels])
def test_every_perturbation_computes_what_transformers_computes_alone(
    kind: type[InProcessEngine],
    model: Any,
    texts: list[ScoreRequest],
    alone: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("q36eval.engines.resident.usable_workers", lambda: 1)
    with passes(model) as seen:
        found = states_of(kind(model, TOKENIZER, IDENTITY), texts)
    longest = max(len(request.token_ids) for request in texts)
    paths = {
        InProcessEngine: [(8, longest)],
        LeftPadded: [(8, longest + perturbation.SHIFT)],
        OneByOne: [(1, len(request.token_ids)) for request in texts],
        Decoded: [(8, 1)] * (longest - 1),
    }
    assert sorted(seen) == sorted(paths.get(kind, seen)), "it takes the path that it names"
    for key, states in found.items():
        assert states.shape == alone[key].shape
        assert float((states - alone[key]).abs().max()) < SAME, key


def test_another_batch_is_another_company(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "SCORE_BATCH_TOKENS", 200)
    rows = [ScoreRequest(str(n), tuple(range(2, 2 + n)), 1) for n in (40, 41, 9, 10)]
    batches = [[r.key for r in b] for b in InOtherCompany(model, TOKENIZER, IDENTITY)._score_batches(rows)]
    assert batches == [["10", "40"], ["41", "9"]]  # by content and 100 tokens at most, not by length


def test_other_kernels_are_put_back_whatever_happens(model: Any) -> None:
    before = model.config._attn_implementation, model.config._experts_implementation
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda *_: seen.append((model.config._attn_implementation, model.config._experts_implementation))
    )
    engine = OtherKernels(model, TOKENIZER, IDENTITY)
    engine._score_batch([ScoreRequest("x", (3, 4, 5), 1)])
    with pytest.raises(IndexError):
        engine._score_batch([ScoreRequest("x", (3, 10**6), 1)])  # no such token
    hook.remove()
    assert seen == [("eager", "eager")] * 2
    assert before == ("sdpa", "grouped_mm")
    assert (model.config._attn_implementation, model.config._experts_implementation) == before


def test_what_cannot_be_had_says_why(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = {p.name: p.skipped for p in perturbations(InProcessEngine(model, TOKENIZER, IDENTITY))}
    assert {name: reason for name, reason in found.items() if reason} == {
        "device": "there is no GPU",
        "another-engine": "no other engine is at hand",
    }
    assert {"left-padding", "batch-of-one", "another-batch", "decode", "bf16-logits"} <= found.keys()


def test_another_device_is_run_by_a_copy_in_a_process_of_its_own(
    model: Any, texts: list[ScoreRequest], alone: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to the GPU, where there is none with the CPU in its place: this process runs nothing."""
    has_gpu = torch.cuda.device_count() > 0
    monkeypatch.setattr(perturbation, "FORKED_DEVICE", "cuda:0" if has_gpu else "cpu")
    with passes(model) as seen:
        found = states_of(OnGPU(model, TOKENIZER, IDENTITY), texts)
    assert seen == []
    allowed = 1e-2 if has_gpu else SAME  # TF32 may round products
    assert max(float((found[key] - alone[key]).abs().max()) for key in alone) < allowed
