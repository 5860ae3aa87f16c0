"""What batches take against what is planned for them: `python -m benchmarks.memory_plan FOLDER [--device cuda:0]`.

Opens the checkpoint FOLDER, prints its plan, and runs one full batch of each kind: scored texts, questions after a
shared prefix, answers, and one long row. For each: the peak of allocated memory beyond the weights, what is planned,
their ratio, and how often memory ran out. `--limit` GiB is what torch may allocate, as on a smaller card. `--out` is a
file for the same in JSON.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

from q36eval.engines import EngineSettings, open_engine
from q36eval.engines.base import Engine, GenerationRequest, ScoreRequest
from q36eval.engines.memory_plan import ATTENDED_TOKENS, MemoryPlan
from q36eval.run.memory_report import batches_line, memory_rows, size

PROMPT, BUDGET = 448, 64
PREFIX, REST = 2048, 128
TEXT = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--placement", choices=["decoded", "packed", "layers"])
    parser.add_argument("--limit", type=float, help="GiB")
    parser.add_argument("--long", type=int, default=32_000, help="tokens of the long row")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.limit is not None:
        total = torch.cuda.mem_get_info(arguments.device)[1]
        torch.cuda.set_per_process_memory_fraction(arguments.limit * 2**30 / total, arguments.device)
    settings = EngineSettings(arguments.folder, device=arguments.device, placement=arguments.placement)
    engine = open_engine(settings)
    engine.report_to(print)
    plan = engine.batches()
    assert plan is not None, "an engine in this process plans its batches"
    print(batches_line(plan))
    for what, taken, why in memory_rows(plan):
        print(f"{what:<40}{taken:>12}  {why}")
    print("\n| batch | tokens | peak beyond the weights | planned | ratio | s | out of memory |")
    print("|---|---|---|---|---|---|---|")
    texts = min(TEXT, plan.score_tokens)
    lines = [_scored(engine, plan, "texts", [texts] * (plan.score_tokens // texts), 0)]
    rows = max(2, min(plan.score_tokens // REST, ATTENDED_TOKENS * plan.score_tokens // (PREFIX + REST)))
    lines.append(_scored(engine, plan, "after a prefix", [PREFIX + REST] * rows, PREFIX))
    lines.append(_scored(engine, plan, "a long row", [arguments.long], 0))
    if engine.generates:
        lines.append(_answered(engine, plan))
    if arguments.out is not None:
        said = {"plan": batches_line(plan), "memory": memory_rows(plan), "batches": lines}
        arguments.out.write_text(json.dumps(said, indent=1))


def _tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(2, 900), k=count))


def _scored(engine: Engine, plan: MemoryPlan, name: str, lengths: list[int], shared: int) -> dict[str, Any]:
    common = _tokens(shared, 0)
    requests = [
        ScoreRequest(f"{name}/{at}", common + _tokens(length - shared, at + 1), length - 1, name, shared)
        for at, length in enumerate(lengths)
    ]
    planned = plan.costs.scoring(plan.score_tokens)
    if len(requests) == 1:
        chunk = plan.chunk(1, lengths[0])
        kept = plan.costs.recurrent_row + plan.costs.conv_row + lengths[0] * plan.costs.kv_token
        planned = plan.costs.reading(1, chunk, lengths[0] - chunk) + kept
    begun, held = time.perf_counter(), _begin()
    for result in engine.score(requests):
        assert result.error is None, result.error
    return _line(engine, name, sum(lengths), planned, begun, held)


def _answered(engine: Engine, plan: MemoryPlan) -> dict[str, Any]:
    rows = plan.rows_of(PROMPT, BUDGET)
    requests = [GenerationRequest(f"answer/{at}", _tokens(PROMPT, at), BUDGET) for at in range(rows)]
    planned = plan.costs.reading(1, plan.prompt_tokens, 0) + rows * plan.costs.row(PROMPT, BUDGET)
    begun, held = time.perf_counter(), _begin()
    together = 0
    for result in engine.generate(requests):
        assert result.error is None, result.error
        together = max(together, result.rows)
    return _line(engine, f"{rows} answers, {together} together", rows * (PROMPT + BUDGET), planned, begun, held)


def _begin() -> int:
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _line(engine: Engine, name: str, tokens: int, planned: int, begun: float, held: int) -> dict[str, Any]:
    seconds, splits = time.perf_counter() - begun, engine.splits
    if not torch.cuda.is_initialized():
        print(f"| {name} | {tokens:,} | unknown on a CPU | {size(planned)} | | {seconds:.1f} | {splits} |", flush=True)
        return {"batch": name, "planned": planned, "peak": None, "seconds": seconds, "splits": splits}
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - held
    ratio = f"{peak / planned:.2f}"
    print(f"| {name} | {tokens:,} | {size(peak)} | {size(planned)} | {ratio} | {seconds:.1f} | {splits} |", flush=True)
    return {"batch": name, "planned": planned, "peak": peak, "seconds": seconds, "splits": splits}


if __name__ == "__main__":
    main()
