"""What the canary probe costs: `python benchmarks/canaries.py [BRANCH] [--draws N]`, or `--full-shape` on a GPU.

Times the probe's two passes over one engine, alternately in one run: the answers (generated until their end of turn),
and the teacher-forced pass over the reference's answers that margins are read from; prints seconds, tokens and the
ratio, as median (smallest to largest) of several rounds. With `--full-shape` the model has the shape of Qwen3.6-35B-A3B
and random weights, whose answers never end, so that every answer takes its whole budget (`--budget N`: at most so
many tokens): the most that a suite can take. The first round there also compiles kernels. Times of the release suite
are scaled from the draws that were asked, and say so.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # this folder's modules must not hide the packages
ROUNDS = 3
RELEASE_DRAWS = 200


def full_shape_engine() -> Any:
    """Random BF16 weights at the full shape, with the sandbox's tokenizer: what is timed is no language."""
    from benchmarks.kl import full_model
    from q36eval.checkpoints import load_tokenizer
    from q36eval.engines import engine_around, identity_of

    folder = ROOT / "data/sandbox/bf16"
    return engine_around(full_model(), load_tokenizer(folder), identity_of(folder))


def passes(engine: Any, probe: Any, items: Sequence[Any]) -> tuple[list[float], list[int]]:
    """Seconds and tokens of one round: answers, then the teacher-forced pass with margins and choices."""
    from q36eval.run.items import Work, finished_items, second_items

    started = time.perf_counter()
    digests = {
        item.key: probe.digest(engine, item, results)
        for _, item, results in finished_items(engine, [Work(probe, items)])
    }
    answered = time.perf_counter() - started
    forced = [
        item.__class__(key=item.key, scores=item.scores) for item in second_items(Work(probe, items), digests)
    ]  # without what only the reference is asked
    first = {item.key: item for item in items}
    started = time.perf_counter()
    for _, item, results in finished_items(engine, [Work(probe, forced)]):
        key = item.key.removesuffix("/then")
        probe.digest_follow_up(engine, first[key], digests[key], results)
    seconds = [answered, time.perf_counter() - started]
    written = sum(len(digest.values["token_ids"]) for digest in digests.values())
    return seconds, [written, sum(len(request.token_ids) for item in forced for request in item.scores)]


def bounded(item: Any, budget: int | None) -> Any:
    """The item with answers of at most `budget` tokens."""
    if budget is None:
        return item
    requests = (replace(r, max_new_tokens=min(budget, r.max_new_tokens)) for r in item.generations)
    return replace(item, generations=tuple(requests))


def main() -> None:
    """Ask the suite and print the table."""
    import torch

    from q36eval.app.sandbox import build
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.canaries.specification import load_specs
    from q36eval.engines import open_engine
    from q36eval.probes import in_group

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("branch", nargs="?", default="fp8-head")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--budget", type=int, help="let no answer take more tokens")
    parser.add_argument("--full-shape", action="store_true")
    arguments = parser.parse_args()
    folder = build(arguments.branch)
    engine = full_shape_engine() if arguments.full_shape else open_engine(folder)
    specs = load_specs(n=arguments.draws, skills=None if arguments.full_shape else ())
    probe = CanaryProbe(specs)
    items = [in_group(item, "canaries") for item in probe.plan(engine.tokenizer)]
    fits = [bounded(item, arguments.budget) for item in items if item.tokens < 16_384]
    rounds = [passes(engine, probe, fits) for _ in range(arguments.rounds)]
    prompts = sum(len(item.generations[0].token_ids) for item in fits)
    families = sum(spec.family is not None for spec in specs)
    name = "full shape, random weights" if arguments.full_shape else arguments.branch
    print(f"{name}: {len(fits)} questions of {len(items)}, "
          f"{families} families x {arguments.draws}, {prompts} prompt tokens")  # fmt: skip
    for at, name in enumerate(("answers", "margins")):
        times, tokens = [seconds[at] for seconds, _ in rounds], [count[at] for _, count in rounds]
        middle = statistics.median(times)
        print(f"{name}: {middle:.1f} s ({min(times):.1f} to {max(times):.1f}), {tokens[0]} tokens, "
              f"{tokens[0] / middle:,.0f} a second")  # fmt: skip
    ratios = [seconds[1] / seconds[0] for seconds, _ in rounds]
    print(f"margins cost {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) times the answers")
    if arguments.draws < RELEASE_DRAWS:
        whole = statistics.median(sum(seconds) for seconds, _ in rounds) * RELEASE_DRAWS / arguments.draws
        print(f"scaled to {RELEASE_DRAWS} draws a family, not run: {whole:,.0f} s")
    if arguments.full_shape:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
