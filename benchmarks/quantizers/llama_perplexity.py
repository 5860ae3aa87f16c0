"""llama.cpp's KL of GGUF branches by `llama-perplexity --kl-divergence`, and ours of the same tokens.

    python -m benchmarks.quantizers.llama_perplexity FOLDER [NAME ...] [--windows 8]

Writes FOLDER/llama-perplexity/NAME.json for each GGUF branch of `set-aside.yaml`, and prints no figure. The text is
WikiText-2's test set in windows of 512 tokens, of which llama.cpp scores the second half. Each pair has four figures:
`tool` is what llama.cpp prints. `formulas` is its formulas on its stored logits of the reference and our float32 logits
of the branch: unlike `tool` without the 8 bits to which llama.cpp rounds the inputs of products. `float32` is the exact
KL of the decoded weights. `engine` is the KL of a gate, whose weights and states are BF16.
"""

import argparse
import json
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quantizers import producers, truth
from benchmarks.quantizers.names import drawn
from q36eval.checkpoints import load_model
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.engines import Engine, ScoreRequest, open_engine
from q36eval.kl.divergence import TokenFigures, token_figures
from q36eval.kl.scoring import Scorer
from tests import smollm2
from tests.kl.peer import PeerFigures, StoredLogits, ours, parse_printed, peer_figures, read_stored

HERE = Path(__file__).parent
REFERENCE = "gguf-bf16"
OPTIONS = ("--threads", "1", "-c", "512", "-b", "512", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
"""One window at a time; attention and KV cache in float32, as in our float32 pass."""


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of a call, its wall-clock seconds, and its CPU seconds in all threads and child processes."""

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    started, before = time.perf_counter(), cpu()
    result = call()
    return result, {"wall": round(time.perf_counter() - started, 1), "cpu": round(cpu() - before, 1)}


def perplexity(model: Path, *arguments: str | Path) -> str:
    """What llama-perplexity printed. Raises RuntimeError with its last lines if it failed."""
    made = subprocess.run([HERE.parents[1] / ".ci" / "llama-cpp"], check=True, stdout=subprocess.PIPE, text=True)
    command = [Path(made.stdout.strip(), "build/bin/llama-perplexity"), "--model", model, *OPTIONS, *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"llama-perplexity failed:\n{done.stdout[-2000:]}")
    return done.stdout


@torch.inference_mode()
def float32_figures(branch: Path, stored: StoredLogits) -> tuple[TokenFigures, PeerFigures]:
    """Exact figures of the decoded weights, and llama.cpp's formulas on the same logits of the branch, per token."""
    models = [load_model(checkpoint, dtype=torch.float32).model for checkpoint in (smollm2.folder(), branch)]
    exact, peer = [], []
    for tokens, rows, labels in zip(stored.tokens, stored.rows, stored.labels, strict=True):
        window = torch.tensor(tokens, dtype=torch.long)[None]
        p, q = (model(input_ids=window, use_cache=False).logits[0, stored.context // 2 : -1] for model in models)
        exact.append(token_figures(p, q, torch.tensor(labels, dtype=torch.long)))
        peer.append(peer_figures(rows, q.numpy(), labels))
    columns = ("kld", "nll", "nll_base", "same_top")
    merged = PeerFigures(*(np.concatenate([getattr(part, column) for part in peer]) for column in columns))
    return TokenFigures.concatenated(exact), merged


def states_of(engine: Engine, stored: StoredLogits) -> torch.Tensor:
    """Final hidden states [T, H] of the scored tokens."""
    first = stored.context // 2 + 1
    requests = [ScoreRequest(str(at), tuple(map(int, row)), first) for at, row in enumerate(stored.tokens)]
    states: dict[str, Any] = {scored.request.key: scored.hidden_states for scored in engine.score(requests)}
    return torch.cat([states[request.key] for request in requests])


class Comparison:
    """The reference, as a GGUF for llama.cpp and as a folder for us, with which branches are compared."""

    def __init__(self, folder: Path, windows: int) -> None:
        self.base, text = folder / "base.logits", folder / "wikitext.txt"
        text.write_bytes(truth.fetched(*truth.WIKITEXT))
        store = ("--chunks", str(windows), "--file", text, "--kl-divergence-base", self.base)
        _, self.tool_seconds = timed(lambda: perplexity(producers.branch(REFERENCE), *store))
        self.stored = read_stored(self.base)
        self.engine = open_engine(smollm2.folder())
        self.states, self.seconds = timed(lambda: states_of(self.engine, self.stored))

    def of(self, branch: Path) -> dict[str, Any]:
        """All figures of a branch, and their costs."""
        compare = ("--kl-divergence-base", self.base, "--kl-divergence")
        output, tool_seconds = timed(lambda: perplexity(branch, *compare))
        labels = torch.tensor(self.stored.labels, dtype=torch.long).flatten()
        scorer = Scorer(open_engine(branch), self.engine.output_head())
        figures, seconds = timed(lambda: scorer.figures(self.states, states_of(scorer.engine, self.stored), labels))
        exact, formulas = float32_figures(branch, self.stored)
        return {
            "tokens": len(labels),
            "tool": {name: value for name, value in parse_printed(output).items() if " I " not in name},
            "formulas": formulas.printed(),
            "float32": ours(exact),
            "engine": ours(figures),
            "tool_bytes_per_token": self.base.stat().st_size / len(labels),
            "engine_bytes_per_token": self.states.element_size() * self.states.shape[1],
            "tool_seconds": {"reference": self.tool_seconds, "branch": tool_seconds},
            "engine_seconds": {"reference": self.seconds, "branch": seconds},
        }


def main() -> None:
    """Compare every branch that has no record yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    ggufs = [name for name in drawn() if name.startswith("gguf-")]
    parser.add_argument("names", nargs="*", default=ggufs)
    parser.add_argument("--windows", type=int, default=8)
    asked = parser.parse_args()
    folder: Path = asked.folder / "llama-perplexity"
    folder.mkdir(parents=True, exist_ok=True)
    with opened_once() as opened:
        opened.measure_against(smollm2.folder())
        comparison = Comparison(folder, asked.windows)
        for name in asked.names:
            if not (record := folder / f"{name}.json").exists():
                record.write_text(json.dumps(comparison.of(producers.branch(name)), indent=1), encoding="utf-8")
                print(f"{name}: measured", flush=True)


if __name__ == "__main__":
    main()
