"""What hidden states cost vLLM: `python -m benchmarks.vllm_speed FOLDER --engine-python PYTHON --device cuda:0`.

Opens the branch of FOLDER by the engine `vllm` and reads the same random texts three ways, in turns: asked of vLLM for
one token each ("bare"), with every final hidden state taken, and with both heads and the divergence on top, as the gate
has it (`--reference`: the folder whose head is the reference's, by default the branch's own; its states are the
branch's by 1.01); that last way again with each of `--tiles`, how many tokens' logits are made at once. All of it with
each number of `--documents`: what beginning and ending cost is the same for few as for many. Then heads and divergence
alone, while vLLM waits. Prints medians with ratios to bare, and JSON to `--out`.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from q36eval.engines import EngineSettings, ScoreRequest
from q36eval.engines.head import Head
from q36eval.engines.vllm.engine import VLLMEngine
from q36eval.kl import scoring
from q36eval.kl.scoring import Scorer

Figures = dict[str, Any]


def asked_bare(engine: VLLMEngine, prompts: list[list[int]]) -> None:
    """The same passes without any capture: vLLM answers one token, greedily."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
    requests = [{"token_ids": ids, "sampling": sampling} for ids in prompts]
    answers = engine._worker.ask("generate", "it answered", requests=requests)["answers"]
    assert all(len(each["token_ids"]) == 1 for each in answers)


def captured(engine: VLLMEngine, prompts: list[list[int]], scorer: Scorer | None = None) -> None:
    """Every state of every text; with a scorer the figures of every token too."""
    requests = [ScoreRequest(str(at), tuple(ids)) for at, ids in enumerate(prompts)]
    for scored in engine.score(requests):
        states = scored.hidden_states
        assert states is not None, scored.error
        if scorer is not None:
            labels = torch.tensor(scored.request.token_ids[1:], device=states.device)
            assert bool(scorer.figures(states * 1.01, states, labels).finite.all())


def heads_alone(scorer: Scorer, states: torch.Tensor, texts: int) -> None:
    """Heads and divergence of so many texts of the same states [T, H]."""
    labels = torch.zeros(len(states), dtype=torch.long, device=states.device)
    for _ in range(texts):
        scorer.figures(states * 1.01, states, labels)


def in_tiles(engine: VLLMEngine, tokens: int, call: Callable[[], None]) -> None:
    """A call in which so many tokens' logits of one deployment are made at once, if they fit what is free."""
    own, scoring.GPU_TILE_BYTES = scoring.GPU_TILE_BYTES, 4 * tokens * len(engine.output_head().weight)
    try:
        call()
    finally:
        scoring.GPU_TILE_BYTES = own


def captured_in_tiles(engine: VLLMEngine, scorer: Scorer, tokens: int, prompts: list[list[int]]) -> None:
    """As `captured`, in tiles of so many tokens."""
    in_tiles(engine, tokens, partial(captured, engine, prompts, scorer))


def memory_gib() -> float | None:
    """Of all processes on the first device that the driver shows; None where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return max(float(line) for line in told.split()) / 1024


def seconds_of(call: Callable[[], None]) -> float:
    """Of one call, the device's work included."""
    begun = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measured(engine: VLLMEngine, asked: argparse.Namespace) -> Figures:
    """All of it, of an engine that is open."""
    rng = random.Random(1)
    rows, width = engine.output_head().weight.shape

    def texts(count: int, tokens: int) -> list[list[int]]:
        return [rng.choices(range(min(asked.vocabulary, rows)), k=tokens) for _ in range(count)]

    folder = asked.reference or asked.folder
    plain = EngineSettings(folder, device=asked.device, emulate_activations=False)
    scorer = Scorer(engine, Head.of(plain).plain())
    ways: dict[str, Callable[[list[list[int]]], None]] = {
        "bare": lambda prompts: asked_bare(engine, prompts),
        "states": lambda prompts: captured(engine, prompts),
        "states, heads, divergence": lambda prompts: captured(engine, prompts, scorer),
    }
    for tile in asked.tiles:
        ways[f"states, heads, divergence; tiles of {tile:,}"] = partial(captured_in_tiles, engine, scorer, tile)
    for call in ways.values():  # kernels are compiled and memory is taken
        call(texts(min(asked.documents), asked.tokens))
    seconds: dict[int, dict[str, list[float]]] = {}
    for documents in asked.documents:
        seconds[documents] = {name: [] for name in ways}
        for _ in range(asked.rounds):
            prompts = texts(documents, asked.tokens)
            for name, call in ways.items():
                seconds[documents][name].append(taken := seconds_of(partial(call, prompts)))
                print(f"{documents} texts, {name}: {taken:.1f} s", flush=True)
    states = torch.randn(asked.tokens - 1, width, device=engine.device).to(torch.bfloat16)
    most = max(asked.documents)
    alone = {
        tile: statistics.median(
            seconds_of(partial(in_tiles, engine, tile, partial(heads_alone, scorer, states, most)))
            for _ in range(asked.rounds)
        )
        for tile in asked.tiles
    }
    print(f"heads and divergence alone, seconds for {most} texts by tokens in a tile: {alone}", flush=True)
    return {
        "tokens_each": asked.tokens - 1,
        "seconds": seconds,
        "tokens_per_second": {
            documents: {name: documents * (asked.tokens - 1) / statistics.median(each) for name, each in of.items()}
            for documents, of in seconds.items()
        },
        "heads_alone_seconds": alone,
        "driver_gib": memory_gib(),
        "settings": engine.identity.settings | {"kv_cache_dtype": engine.identity.kv_cache_dtype},
        "version": engine.identity.engine_version,
    }


def main() -> None:
    """Open, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--engine-python")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--documents", type=int, nargs="+", default=[64])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=1000, help="tokens are drawn of the first so many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiles", type=int, nargs="*", default=[], choices=scoring.GPU_TILE_ROWS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    settings = EngineSettings(
        asked.folder,
        kind="vllm",
        device=asked.device,
        engine_python=asked.engine_python,
        engine_arguments=tuple(asked.engine_arg),
        kv_cache_dtype=asked.kv_cache_dtype,
        recurrent_state_dtype="float32",
    )
    begun = time.perf_counter()
    engine = VLLMEngine.load(settings)
    opened = time.perf_counter() - begun
    print(f"opened and self-tested in {opened:.1f} s", flush=True)
    figures = measured(engine, asked) | {"open_seconds": opened}
    if asked.out is not None:
        asked.out.write_text(json.dumps(figures, indent=1))
    print("| texts | way | tokens/s | of bare |\n|---|---|---|---|")
    for documents, rates in figures["tokens_per_second"].items():
        for name, rate in rates.items():
            print(f"| {documents} | {name} | {rate:,.0f} | {rate / rates['bare']:.3f} |")
    print(f"memory by the driver: {figures['driver_gib']}")


if __name__ == "__main__":
    main()
