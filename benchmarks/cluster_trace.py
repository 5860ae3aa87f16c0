"""What bounds the suite `release` for several branches on a Ray cluster of many GPUs: a trace of events.

Measured here, with the real pool and dispatch and workers that compute nothing: how many units a second a driver hands
out and takes back, by what a unit carries. Taken from `README.md` ("What was seen at full size"): what a GPU reads and
scores a second. The rest is assumed, and the table says so. Nothing is computed on a GPU.

    python benchmarks/cluster_trace.py --gpus 64 --branches 6
"""

import argparse
import heapq
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from q36eval.engines.base import Batch, Generated, GenerationRequest, Result, Scored, ScoreRequest
from q36eval.engines.memory_plan import Costs, MemoryPlan, Room, plan_memory
from q36eval.engines.worker_places import Place
from q36eval.engines.workers import pool as pools
from q36eval.engines.workers.dispatch import WINDOW, Dispatch
from q36eval.engines.workers.packing import packed, unpacked
from q36eval.engines.workers.worker import Computed, Worker

GIB = 2**30
HIDDEN = 2048
STATE_BYTES = 2 * HIDDEN

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
SAMPLES = 1300  # 13 tasks x 100
BLOCK = 200
ANSWER_TOKENS = 128

# of one H100 with decoded weights, seen at full size on 2026-11-25; no prompt below 32,768 tokens was timed there
READ_PER_SECOND = {131072: 3377.0, 65536: 10900.0, 32768: 10900.0, 16384: 10900.0, 8192: 10900.0, 4096: 10900.0}
MMLU_ITEMS, MMLU_TOKENS, MMLU_PER_SECOND = 14042, 744, 5037.0
WIKITEXT_TOKENS, WIKITEXT_PER_SECOND = 300_000, 26_600.0
KL_TOKENS, KL_PER_SECOND = 1450 * 318, 12_700.0
MMLU_ROWS = 4  # of an item's tokens those whose logits are read: a token of each choice
# both heads and the divergence of 4,096 tokens on one H200: 10.4 and 13.1 ms
DIVERGENCE_PER_SECOND = 4096 / 0.0235
H100_BYTES, DECODED_BYTES, BRANCH_BYTES = int(79.1 * GIB), int(64.9 * GIB), int(20.4 * GIB)
LOAD_S = 18.2


class Echo(Worker):
    """Computes nothing: sends states of the size that the first request's key says, and answers of no tokens."""

    def follow(self, instructions: Sequence[object]) -> None:  # type: ignore[override]
        """There is nothing to open."""

    def compute(self, number: int, batches: Sequence[Batch]) -> Computed:
        results: list[list[Result]] = []
        for batch in batches:
            row: list[Result] = []
            for request in batch:
                if isinstance(request, ScoreRequest):
                    tokens = int(request.key.split("/")[0])
                    row.append(Scored(request, torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16)))
                else:
                    row.append(Generated(request, tuple(range(ANSWER_TOKENS)), "x" * ANSWER_TOKENS, "length"))
            results.append(row)
        return Computed(packed(results), (), 0)


@dataclass(frozen=True)
class Carried:
    """What a unit carries, and how long the driver had with one."""

    what: str
    prompt_tokens: int
    result_bytes: int
    units_per_second: float

    @property
    def seconds(self) -> float:
        """The driver's time for one."""
        return 1 / self.units_per_second


def measured(workers: int, seconds: float) -> list[Carried]:
    """Units of several sizes through the real dispatch, as many as come in about so many seconds each."""
    pools.Worker = Echo  # type: ignore[misc]
    pool = pools.Pool.start(Place(workers, 0))
    rng = np.random.default_rng(0)
    figures = []
    try:
        for what, batch, carried in _units(rng):
            list(_through(pool, [[batch]] * (2 * WINDOW * workers)))
            count = 4 * WINDOW * workers
            while True:
                begun = time.perf_counter()
                for _ in _through(pool, [[batch]] * count):
                    pass
                took = time.perf_counter() - begun
                if took > seconds / 2:
                    break
                count *= 2
            figures.append(Carried(what, sum(len(r.token_ids) for r in batch), carried, count / took))
    finally:
        pool.end()
        pools.disconnect()
    return figures


def _units(rng: np.random.Generator) -> Iterator[tuple[str, Batch, int]]:
    def ids(count: int) -> tuple[int, ...]:
        return tuple(int(each) for each in rng.integers(0, 248_320, count))

    yield "an answer to a short prompt", [GenerationRequest("a", ids(128), 16)], 0
    yield "four answers to prompts of 4,096", [GenerationRequest(f"{n}", ids(4096), 16) for n in range(4)], 0
    yield "one answer to a prompt of 131,072", [GenerationRequest("a", ids(131_072), 16)], 0
    for tokens in (256, 4096, 16384):
        yield f"states of {tokens:,} tokens", [ScoreRequest(f"{tokens}/a", ids(tokens))], tokens * STATE_BYTES


def _through(pool: pools.Pool, units: Sequence[Sequence[Batch]]) -> Iterator[Result]:
    for unit, outcome in Dispatch(pool, 0, units).outcomes():
        assert isinstance(outcome, Computed), outcome
        for results in unpacked(outcome.results, unit, "cpu"):
            yield from results


@dataclass(frozen=True)
class Unit:
    """What one worker does at once: seconds of its GPU, and of the driver (out, back and what follows)."""

    gpu_s: float
    driver_s: float


def full_plan() -> MemoryPlan:
    """The batches of the full shape on an H100, by the plan of the engine itself."""
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

    costs = Costs.of(Qwen3_5MoeTextConfig(), fused_delta=True, fused_layers=True)
    return plan_memory(costs, Room("H100", "decoded", H100_BYTES, H100_BYTES - DECODED_BYTES, DECODED_BYTES))


def blocks_of_release(carried: Sequence[Carried]) -> list[tuple[str, list[Unit]]]:
    """The rounds of one branch: the next begins when all of one is judged, so that a verdict can stop it."""
    plan = full_plan()
    short, _, long, *states = carried
    token_s = max(0.0, long.seconds - short.seconds) / long.prompt_tokens
    byte_s = max(0.0, states[-1].seconds - states[0].seconds) / (states[-1].result_bytes - states[0].result_bytes)

    def scored(tokens: int, per_second: float, read: float) -> Unit:
        back = read * tokens * (STATE_BYTES * byte_s + 1 / DIVERGENCE_PER_SECOND)
        return Unit(tokens / per_second, short.seconds + tokens * token_s + back)

    def scoring(tokens: int, per_second: float, read: float = 1.0) -> list[Unit]:
        """`read` is the share of the tokens whose logits are read, and whose states so come back."""
        whole, rest = divmod(tokens, plan.score_tokens)
        sizes = [plan.score_tokens] * whole + ([rest] if rest else [])
        return [scored(size, per_second, read) for size in sizes]

    rounds = [
        ("kl", scoring(KL_TOKENS, KL_PER_SECOND)),
        ("wikitext", scoring(WIKITEXT_TOKENS, WIKITEXT_PER_SECOND)),
    ]
    for begin in range(0, MMLU_ITEMS, BLOCK):
        tokens = min(BLOCK, MMLU_ITEMS - begin) * MMLU_TOKENS
        rounds.append(("mmlu", scoring(tokens, MMLU_PER_SECOND, MMLU_ROWS / MMLU_TOKENS)))
    items = [length for _ in range(SAMPLES) for length in LENGTHS]
    for begin in range(0, len(items), BLOCK):
        units = []
        for length in LENGTHS:
            left, rows = items[begin : begin + BLOCK].count(length), plan.rows_of(length, ANSWER_TOKENS)
            rows = max(1, min(rows, plan.prompt_tokens // length or 1))
            while left:
                now = min(rows, left)
                units.append(Unit(now * length / READ_PER_SECOND[length], short.seconds + now * length * token_s))
                left -= now
        rounds.append(("ruler", sorted(units, key=lambda unit: -unit.gpu_s)))
    return rounds


@dataclass
class Traced:
    """How long a branch took, and what waited for what."""

    seconds: float = 0.0
    gpu_s: float = 0.0
    driver_s: float = 0.0
    at_ends_s: float = 0.0
    """GPU seconds idle because a round's last units were still computed elsewhere."""


def trace(rounds: Sequence[tuple[str, Sequence[Unit]]], gpus: int) -> Traced:
    """Events of one driver with its own workers: a unit waits for a worker and for the driver's hand, results come back
    in order through the same hand, at most `WINDOW` units for each worker are out, and a round ends before the next."""
    now, driver_free, total = 0.0, 0.0, Traced()
    for _, units in rounds:
        free = [now] * gpus
        heapq.heapify(free)
        finished: list[float] = []
        handed = now
        for place, unit in enumerate(units):
            begin = heapq.heappop(free)
            if place >= WINDOW * gpus:
                begin = max(begin, finished[place - WINDOW * gpus])
            driver_free = max(driver_free, begin) + unit.driver_s / 2
            done = max(begin, driver_free) + unit.gpu_s
            heapq.heappush(free, done)
            handed = max(handed, done) + unit.driver_s / 2
            finished.append(handed)
            total.gpu_s += unit.gpu_s
            total.driver_s += unit.driver_s
        total.at_ends_s += sum(handed - each for each in free)
        now = max(now, handed)
    total.seconds = now
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--branches", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2, help="that compute nothing, to measure the driver with")
    parser.add_argument("--seconds", type=float, default=4.0, help="to measure each size of unit for")
    parser.add_argument("--pack-gbytes", type=float, default=5.0, help="of the shared store, a second (assumed)")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    arguments = parser.parse_args()
    carried = measured(arguments.workers, arguments.seconds)
    print("measured here, real dispatch, workers that compute nothing:")
    print(f"| {'a unit carries':36} | units/s | prompt tokens/s | result MB/s |")
    for each in carried:
        rate = each.units_per_second
        tokens, megabytes = rate * each.prompt_tokens, rate * each.result_bytes / 1e6
        print(f"| {each.what:36} | {rate:7,.0f} | {tokens:15,.0f} | {megabytes:11,.0f} |")
    rounds = blocks_of_release(carried)
    alone = trace(rounds, 1)
    print(
        f"\none branch: {len(rounds)} rounds, {sum(len(units) for _, units in rounds):,} units, "
        f"{alone.gpu_s / 3600:.1f} hours of one GPU (rates seen at full size), {alone.driver_s:,.0f} s of a driver"
    )
    print(f"| {'placed':44} | hours | GPUs busy | driver busy | idle at ends of rounds |")
    figures = {"carried": [vars(each) for each in carried]}
    per_branch = max(1, arguments.gpus // arguments.branches)
    for what, gpus, times in (
        (f"one branch after the other, {arguments.gpus} workers", arguments.gpus, arguments.branches),
        (f"{arguments.branches} gates side by side, {per_branch} workers each", per_branch, 1),
    ):
        one = trace(rounds, gpus)
        used = gpus * (arguments.branches if times == 1 else 1)
        hours = one.seconds * times / 3600
        busy = alone.gpu_s * arguments.branches / (one.seconds * times * used)
        ends = one.at_ends_s / (one.seconds * gpus)
        print(f"| {what:44} | {hours:5.2f} | {busy:8.0%}  | {one.driver_s / one.seconds:10.1%}  | {ends:21.0%}  |")
        figures[what] = [{"hours": hours, "busy": busy, "driver": one.driver_s / one.seconds, "ends": ends}]
    limit = 1 / (alone.driver_s / alone.gpu_s)
    print(f"\none driver keeps up with {limit:,.0f} GPUs of these rates before it is what they wait for")
    read = arguments.gpus * BRANCH_BYTES
    store = arguments.pack_gbytes * 1e9
    side = trace(rounds, per_branch).seconds
    print(
        f"store (assumed {arguments.pack_gbytes:g} GB/s): {arguments.gpus} workers read {read / 1e9:,.0f} GB in "
        f"{read / store:,.0f} s; beside {LOAD_S} s of loading from memory (seen), a tenth of the run is lost below "
        f"{read / (0.1 * side) / 1e9:.2f} GB/s"
    )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
