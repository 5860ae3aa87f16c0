"""Scoring by 1, 2, 4 workers beside the engine alone: tokens a second, efficiency, and whether the bits are the same.

    python benchmarks/workers_speed.py FOLDER --device cuda --workers 1 2 4

FOLDER is a checkpoint: on GPUs one at the full shape (`full_shape.py` writes one), on a CPU the sandbox's. Each number
of workers scores the same random texts in turn, warmed up once; an engine is closed before the next is opened.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch

from q36eval.engines import Engine, EngineOptions, ScoreRequest, open_engine
from q36eval.errors import Q36Error


def texts(vocabulary: int, count: int, tokens: int) -> list[ScoreRequest]:
    """Random ones, the same every time."""
    rng = random.Random(0)
    return [ScoreRequest(str(n), tuple(rng.randrange(vocabulary) for _ in range(tokens))) for n in range(count)]


def timed(engine: Engine, requests: list[ScoreRequest], rounds: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Median seconds of a pass over all texts, and their states on the CPU."""
    states: dict[str, torch.Tensor] = {}
    seconds = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        for scored in engine.score(requests):
            if scored.hidden_states is None:
                raise SystemExit(f"{scored.request.key}: {scored.error}")
            states[scored.request.key] = scored.hidden_states.cpu()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:]), states


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-alone", action="store_true", help="leave out the engine without workers")
    parser.add_argument("--ray", help="address of a cluster; this machine by default")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    arguments = parser.parse_args()
    rows = []
    first: dict[str, torch.Tensor] | None = None
    requests: list[ScoreRequest] = []
    per_worker = 0.0
    for workers in [*([] if arguments.no_alone else [None]), *arguments.workers]:
        options = EngineOptions(
            device=arguments.device, workers=workers, ray=arguments.ray if workers is not None else None
        )
        begun = time.perf_counter()
        try:
            engine = open_engine(options.of(arguments.folder))
        except Q36Error as error:
            print(f"{workers} workers: {error}")
            continue
        opened = time.perf_counter() - begun
        requests = requests or texts(len(engine.tokenizer), arguments.texts, arguments.tokens)
        seconds, states = timed(engine, requests, arguments.rounds)
        rate = sum(len(request.token_ids) for request in requests) / seconds
        if workers is not None:
            per_worker = per_worker or rate / workers
        first = first or states
        alike = all(torch.equal(first[key], states[key]) for key in first)
        efficiency = rate / workers / per_worker if workers is not None else None
        rows.append(
            {"workers": workers, "opened_s": opened, "seconds": seconds, "tokens_per_second": rate,
             "efficiency": efficiency, "same_bits": alike}
        )  # fmt: skip
        who = "alone" if workers is None else f"{workers} workers"
        share = "" if efficiency is None else f", efficiency {efficiency:.0%}"
        bits = "the same" if alike else "OTHER"
        print(f"{who:10} opened in {opened:6.1f} s, {rate:10,.0f} tokens/s{share}, {bits} bits", flush=True)
        del engine, states
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
