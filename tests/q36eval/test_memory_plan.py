"""Batches are planned from shapes and bytes: at the real model's shape, without its weights, on devices of any size."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3_5MoeTextConfig

from q36eval.engines import EngineSettings, open_engine, planned
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.batches import generation_batches, scoring_batches
from q36eval.engines.device_memory import costs_of
from q36eval.engines.memory_plan import (
    CPU_SCORE_BATCH_TOKENS,
    GENERATE_BATCH_ROWS,
    GENERATE_BATCH_TOKENS,
    LADDER,
    PASS_TOKENS,
    ROWS,
    Costs,
    MemoryPlan,
    Room,
    plan_memory,
)
from q36eval.engines.shared_prefix import common_prefix
from q36eval.memory import available_bytes
from tests.branches import folder_of

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"
GIB = 2**30


@pytest.fixture(scope="module")
def costs() -> Costs:
    """Of the 35B-A3B shape, inputs quantized by emulation."""
    return Costs.of(Qwen3_5MoeTextConfig(), emulated=True, fused_delta=True)


def room(total: float, weights: float, decoded: float = 0.0, others: float = 0.0, host: bool = False) -> Room:
    """Figures in GiB; what `others` use is not free."""
    free = int((total - weights - others) * GIB)
    return Room("a card", "decoded", int(total * GIB), free, int(weights * GIB), int(decoded * GIB), host)


@pytest.mark.parametrize(
    ("total", "weights", "decoded", "least_tokens", "least_rows"),
    [(139.8, 64.6, 0, 16384, 128), (139.8, 21, 1.5, 16384, 256), (79.2, 64.6, 0, 4096, 16), (32, 21, 1.5, 4096, 16)],
)
def test_what_fits_is_planned_and_fits(
    total: float, weights: float, decoded: float, least_tokens: int, least_rows: int, costs: Costs
) -> None:
    plan = plan_memory(costs, room(total, weights, decoded))
    assert least_tokens <= plan.score_tokens <= 16384
    assert least_rows <= plan.rows <= 256
    assert not plan.short
    taken = plan.room.weights + plan.room.decoded + plan.room.margin
    assert costs.logits_tile <= plan.batches
    assert taken + costs.scoring(plan.score_tokens) <= plan.room.total
    for prompt, budget in ((100, 100), (2_000, 500), (30_000, 200)):
        rows = plan.rows_of(prompt, budget)
        answering = rows * costs.row(prompt, budget)
        assert rows == 1 or taken + answering + costs.reading(1, plan.prompt_tokens, 0) <= plan.room.total


def test_more_memory_never_gives_smaller_batches_and_a_card_too_small_gives_the_smallest(costs: Costs) -> None:
    plans = [plan_memory(costs, room(total, 21, 1.5)) for total in (20, 23, 24, 26, 28, 32, 40, 48, 80, 140, 192)]
    for less, more in pairwise(plans):
        assert less.score_tokens <= more.score_tokens
        assert less.prompt_tokens <= more.prompt_tokens
        assert less.rows <= more.rows
        assert less.chunk(1, 100_000) <= more.chunk(1, 100_000)
    assert (plans[0].score_tokens, plans[0].rows) == (LADDER[-1], 1)


def test_what_is_free_at_the_moment_changes_nothing_until_it_is_less_than_planned_with(costs: Costs) -> None:
    alone = plan_memory(costs, room(80, 21, 1.5))
    limits = (alone.score_tokens, alone.prompt_tokens, alone.rows, alone.cache_bytes)
    for others in (0.1, 0.7, 1.3):  # a context, a desktop
        now = plan_memory(costs, room(80, 21, 1.5, others))
        assert (now.score_tokens, now.prompt_tokens, now.rows, now.cache_bytes) == limits
        assert not now.short
    crowded = plan_memory(costs, room(80, 21, 1.5, 50))
    assert crowded.short
    assert crowded.rows < alone.rows
    assert crowded.rows in ROWS
    assert crowded.score_tokens in LADDER
    assert crowded.room.decoded + costs.scoring(crowded.score_tokens) <= crowded.room.free


def test_a_cpu_keeps_its_limits_unless_they_are_not_free(costs: Costs) -> None:
    plenty = plan_memory(costs, room(128, 0, host=True))
    assert (plenty.score_tokens, plenty.prompt_tokens, plenty.rows) == (
        CPU_SCORE_BATCH_TOKENS,
        GENERATE_BATCH_TOKENS,
        GENERATE_BATCH_ROWS,
    )
    assert plenty.cache_bytes is None
    assert not plenty.short
    assert plan_memory(replace(costs, recurrent_row=0), room(128, 0, host=True)).rows == 48  # 2**30 / (1024 * 20480)
    assert plan_memory(costs, room(64, 0, host=True)).rows == plenty.rows  # nothing in between
    assert {plan_memory(costs, room(140, 21, host=host), rows=5).rows for host in (True, False)} == {5}
    scarce = plan_memory(costs, room(4, 0, host=True))
    assert scarce.short
    assert scarce.rows < plenty.rows
    assert scarce.score_tokens <= plenty.score_tokens
    assert scarce.costs.scoring(scarce.score_tokens) <= 4 * GIB


def test_long_rows_are_read_in_whole_chunks_that_leave_room_for_what_is_remembered(costs: Costs) -> None:
    plan = plan_memory(costs, room(32, 21, 1.5))
    assert plan.chunk(1, 2_000) == 2_000
    chunk = plan.chunk(1, 131_072)
    assert chunk % 64 == 0
    assert 64 < chunk < 131_072
    remembered = costs.recurrent_row + costs.conv_row + 131_072 * costs.kv_token
    assert remembered + costs.reading(1, chunk, 131_072 - chunk) <= plan.batches
    assert [plan.chunk(1, 131_072, halvings) for halvings in (1, 2)] == [chunk // 2, chunk // 4]
    assert plan.chunk(1, 131_072, 40) == 64
    held = plan.answering_bytes(4, 8_192, 200)
    assert held == plan.cache_bytes
    answered = plan.chunk(4, 8_192, held=held)
    assert costs.reading(4, answered, 8_192 - answered) + held <= plan.batches
    large = plan_memory(costs, room(192, 21))
    assert large.chunk(1, 131_072) <= PASS_TOKENS
    assert plan_memory(costs, room(512, 0, host=True)).chunk(1, 131_072) == 131_072  # a CPU's passes stay whole


def test_a_row_that_cannot_fit_is_known_before_it_is_tried(costs: Costs) -> None:
    """Beside packed weights in 24 GiB one of 64k tokens went on for minutes, 64 at a time, and had not ended."""
    plan = plan_memory(costs, room(24, 20.44, 1.5))
    lacking = plan.lacking(65_536)
    needed, there = lacking
    assert needed > 65_536 * costs.kv_token
    assert there == pytest.approx(2.06 * GIB, rel=0.01)
    assert plan.lacking(16_384) is None
    # what others use now may come free, and a row that is refused is not asked again
    assert plan_memory(costs, room(24, 20.44, 1.5, others=1)).lacking(16_384) is None
    assert plan_memory(costs, room(80, 64.6)).lacking(131_072) is None
    assert plan_memory(costs, room(4, 0, host=True)).lacking(10**6) is None  # a host's memory is not all that it has


def test_a_row_that_goes_through_one_layer_at_a_time_is_remembered_by_one_layer(costs: Costs) -> None:
    """The reference on a card of 8 GiB, and a row of 128k tokens: by what all layers remember nothing fits."""
    one = Costs.of(Qwen3_5MoeTextConfig(), emulated=True, fused_delta=True, one_layer=True)
    assert (costs.kv_token, costs.recurrent_row) == (10 * one.kv_token, 30 * one.recurrent_row)
    assert (costs.conv_row, costs.pass_token) == (30 * one.conv_row, one.pass_token)
    small = room(8, 1.9, 1.6)
    assert plan_memory(costs, small).chunk(1, 131_072) == LADDER[-1], "no pass fits, so the smallest is tried"
    assert plan_memory(costs, small).chunk(3, 131_072) == 128
    assert plan_memory(costs, small).chunk(1, 131_072, halvings=1) == LADDER[-1] // 2
    plan = plan_memory(one, small)
    assert plan.chunk(1, 131_072) >= 1024
    assert plan.chunk(1, 65_536) >= 4096


def test_batches_of_answers_keep_to_the_bytes_that_their_prompts_and_budgets_take(costs: Costs) -> None:
    plan = plan_memory(costs, room(32, 21, 1.5))
    asked = [
        GenerationRequest(f"{at}", tuple(range(length)), budget)
        for at, (length, budget) in enumerate([(9_000 + at % 40, 64) for at in range(30)] + [(300, 900)] * 200)
    ]
    batches = list(generation_batches(asked, plan.prompt_tokens, plan.rows, plan.rows_of))
    assert sorted(each.key for batch in batches for each in batch) == sorted(each.key for each in asked)
    for batch in batches:
        width, budget = max(len(r.token_ids) for r in batch), max(r.max_new_tokens for r in batch)
        assert len(batch) <= plan.rows_of(width, budget)
        assert len(batch) * width <= plan.prompt_tokens or width - min(len(r.token_ids) for r in batch) <= 64
    assert max(len(batch) for batch in batches if len(batch[0].token_ids) >= 9_000) > 1, "long prompts go together"


def test_short_answers_do_not_wait_for_the_room_and_the_steps_of_long_ones(costs: Costs) -> None:
    """The reference's canaries on a card of 80 GB, where 12 rows of 8,192 tokens have room, and 32 of 512."""
    plan = plan_memory(costs, room(79, 64.6, 0))
    budgets = [512, 768, 8192, 96, 2048] * 30
    asked = [GenerationRequest(f"{at}", tuple(range(600 + at)), budget) for at, budget in enumerate(budgets)]
    batches = list(generation_batches(asked, plan.prompt_tokens, plan.rows, plan.rows_of))
    assert sorted(each.key for batch in batches for each in batch) == sorted(each.key for each in asked)
    short = [batch for batch in batches if max(each.max_new_tokens for each in batch) <= 1024]
    assert sum(len(batch) for batch in short) == 90, "none of them is in a batch with long ones"
    assert len(short) <= -(-90 // min(plan.rows_of(750, 768), plan.prompt_tokens // 750)) + 1
    assert plan.rows_of(750, 8192) < plan.rows_of(750, 768)
    for batch in batches:
        assert len({each.max_new_tokens for each in batch if each.max_new_tokens > 1024}) <= 1
    together = list(generation_batches(asked, plan.prompt_tokens, plan.rows))
    assert len({each.max_new_tokens for each in together[0]}) == 5, "without a plan of memory budgets have no part"


@pytest.mark.long
def test_a_gpu_computes_a_prefix_apart_where_that_spares_more_than_passes_cost(costs: Costs) -> None:
    """MMLU, 200 items of 57 subjects at a time: three or four questions after 627 tokens. On a CPU these are shared."""

    def passes(plan: MemoryPlan, questions: int) -> int:
        asked = [
            ScoreRequest(f"{subject}/{n}", (subject,) * 640 + (1_000 + n,) * 100, 650, "mmlu/0", 640)
            for subject in range(57)
            for n in range(questions)
        ]
        batches = list(scoring_batches(asked, plan.score_tokens, plan.worth_sharing))
        return len(batches) + len({batch[0].token_ids[:640] for batch in batches if common_prefix(batch)})

    card, host = plan_memory(costs, room(80, 65)), plan_memory(costs, room(80, 65, host=True))
    assert passes(card, 4) == -(-57 * 4 * 740 // card.score_tokens)
    assert passes(host, 4) == 2 * 57
    assert 2 * 57 <= passes(card, 250) < 57 * 250 * 740 // card.score_tokens, "what is asked 250 times is shared"


def peak_bytes(call: Any) -> int:
    """What torch's CPU allocator gave out at most during a call, from its own records, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, torch.inference_mode():
        kept = call()
    events = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = most = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del kept
    return most


@pytest.mark.long
@pytest.mark.parametrize("branch", ["bf16", "fp8-head"])
def test_a_pass_takes_no_more_than_is_planned_for_it_and_not_much_less(branch: str) -> None:
    engine = open_engine(EngineSettings(folder_of(branch)))
    costs = costs_of(engine.model)
    ids = torch.randint(2, 900, (4, 512))
    peak = peak_bytes(lambda: engine.model.model(input_ids=ids, use_cache=False).last_hidden_state)
    assert peak <= costs.reading(4, 512, 0)
    assert peak >= 0.4 * costs.reading(4, 512, 0), "so much too careful a plan leaves a card idle"


def test_what_rows_remember_is_what_is_planned_for_them() -> None:
    engine = open_engine(EngineSettings(SANDBOX / "bf16"))
    assert (engine.plan.score_tokens, engine.plan.prompt_tokens, engine.plan.rows) == (2048, 16384, 192)
    costs = costs_of(engine.model)
    with torch.inference_mode():
        cache = engine.model.model(input_ids=torch.randint(2, 900, (3, 200)), use_cache=True).past_key_values
    kept = {"keys": 0, "recurrent": 0, "conv": 0}
    for layer in cache.layers:
        if hasattr(layer, "keys"):
            kept["keys"] += layer.keys.nbytes + layer.values.nbytes
        else:
            kept["recurrent"] += layer.recurrent_states[0].nbytes
            kept["conv"] += layer.conv_states[0].nbytes
    assert kept == {"keys": 3 * 200 * costs.kv_token, "recurrent": 3 * costs.recurrent_row, "conv": 3 * costs.conv_row}


@pytest.mark.long
@pytest.mark.parametrize("placement", ["decoded", "packed", "layers"])
def test_what_is_planned_before_weights_are_read_is_planned_once_they_are_there(placement: str) -> None:
    settings = EngineSettings(SANDBOX / "fp8-head", placement=placement)
    before, engine = planned(settings), open_engine(settings)
    after = engine.batches()
    assert before.costs == after.costs
    for plan in (before, after):
        assert plan.room.placement == placement
    assert before.room.decoded == after.room.decoded
    # scales of inputs and the like lie beside packed weights
    assert abs(before.room.weights - after.room.weights) < 0.02 * after.room.weights + 2**16
    assert (before.score_tokens, before.rows) == (after.score_tokens, after.rows)


# -- free memory, as the system and the limits of a container say it


def _machine(root: Path, group: str, files: dict[str, str]) -> Path:
    written = {"proc/self/cgroup": group}
    for name, text in (written | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/a/b\n", "a", ("memory.max", "memory.current", "inactive_file")),
        ("0::/../../far/away\n", ".", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/\n4:memory:/a/b\n0::/\n",
            "memory/a",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_limit_on_a_group_above_ours_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, folder: str, names: tuple[str, str, str]
) -> None:
    monkeypatch.setattr("q36eval.memory.psutil.virtual_memory", lambda: SimpleNamespace(available=100 * GIB))
    limit, use, reclaimable = names
    files = {f"{folder}/{limit}": f"{32 * GIB}\n", f"{folder}/{use}": f"{20 * GIB}\n"}
    root = _machine(tmp_path, group, files | {f"{folder}/memory.stat": f"anon 5\n{reclaimable} {4 * GIB}\n"})
    assert available_bytes(root) == 16 * GIB  # what is cached of files goes when it is asked for
    (root / "sys/fs/cgroup" / folder / use).write_text(f"{40 * GIB}\n")
    assert available_bytes(root) == 0
    (root / "sys/fs/cgroup" / folder / limit).write_text("max\n")
    assert available_bytes(root) == available_bytes(tmp_path / "none") == 100 * GIB


FAULTS = """
import resource, sys, torch
from q36eval.memory import reuse_freed_memory
reuse_freed_memory() if sys.argv[1] == "reused" else None
def faults(mib):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(mib << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(64)
print(faults(40))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_a_freed_block_is_reused_without_page_faults() -> None:
    mapped, reused = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("mapped", "reused")
    )
    assert reused < mapped / 10
