"""The KL probe beside llama.cpp's `llama-perplexity --kl-divergence`, on the same weights and tokens of the sandbox.

`python -m benchmarks.llama_cpp LLAMA_PERPLEXITY CONVERT_HF_TO_GGUF` prints Markdown tables. Both paths belong to one
llama.cpp source tree, built with cmake; the converter needs that tree's `gguf-py` and runs under this Python.

Every branch is decoded to plain weights by our loader and handed to llama.cpp in float32, with a float32 KV cache, so
that both compute the same logits up to the order of their additions; activations are not quantized, since llama.cpp
would not do so. llama.cpp's own tokens are scored: those of the chunks of its file, the second half of each.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from q36eval.app.sandbox import build
from q36eval.config.paths import Paths
from q36eval.engines import Engine, EngineSettings, open_engine
from q36eval.engines.base import ScoreRequest
from q36eval.kl.divergence import TokenFigures, token_figures
from tests.kl.peer import StoredLogits, ours, parse_printed, peer_figures, read_stored, restored, stored_rows

SANDBOX = Paths.default().data / "sandbox"
COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
FLAGS = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
CONVERT = """
import runpy, sys
script = sys.argv[1]
sys.path.insert(0, script.rsplit("/", 1)[0])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"  # the sandbox's own tokenizer is on no list
sys.argv = sys.argv[1:]
runpy.run_path(script, run_name="__main__")
"""


@dataclass(frozen=True)
class Spent:
    """Wall time and CPU time (all threads and children) of one step, in seconds."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> tuple[Any, Spent]:
    """The call's result and what it took."""

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    began, before = time.perf_counter(), cpu()
    result = call()
    return result, Spent(time.perf_counter() - began, cpu() - before)


def as_gguf(engine: Engine, name: str, converter: Path, place: Path) -> Path:
    """The engine's decoded weights as a float32 GGUF file."""
    folder, gguf = place / name, place / f"{name}.gguf"
    engine.model.save_pretrained(folder)
    for each in COPIED:
        shutil.copy(SANDBOX / "bf16" / each, folder / each)
    command = [sys.executable, "-c", CONVERT, str(converter), str(folder), "--outtype", "f32", "--outfile", str(gguf)]
    run([*command, "--no-mtp"])
    return gguf


def run(command: list[str]) -> str:
    """What a command printed on both streams; a failure ends the benchmark with its last lines."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}")
    return done.stdout


@torch.inference_mode()
def float32_logits_of(engine: Engine, stored: StoredLogits) -> NDArray[np.float32]:
    """Logits [T, V] of llama.cpp's scored tokens, the whole model run in float32."""
    model = engine.model.float()
    first = stored.context // 2
    parts = []
    for chunk in torch.from_numpy(stored.tokens.astype(np.int64)).split(8):
        hidden = model.model(input_ids=chunk, use_cache=False).last_hidden_state[:, first:-1]
        parts.append(model.lm_head(hidden).reshape(-1, stored.vocabulary).numpy())
    return np.concatenate(parts)


def float64_divergence(reference: NDArray[np.float32], branch: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(p || q) [T] by its definition in float64."""
    parts = []
    for begin in range(0, len(reference), 512):
        p, q = (each[begin : begin + 512].astype(np.float64) for each in (reference, branch))
        p, q = p - logsumexp(p, axis=-1, keepdims=True), q - logsumexp(q, axis=-1, keepdims=True)
        parts.append((np.exp(p) * (p - q)).sum(-1))
    return np.concatenate(parts)


def top_k_bound(reference: NDArray[np.float32], branch: NDArray[np.float32], k: int = 20) -> float:
    """Mean KL over the reference's k likeliest tokens and all others as one: never above the KL itself."""
    p, q = (torch.log_softmax(torch.from_numpy(each).double(), -1).exp() for each in (reference, branch))
    kept = p.topk(k, dim=-1).indices
    pair = [each.gather(-1, kept) for each in (p, q)]
    p, q = (torch.cat([each, (1 - each.sum(-1, keepdim=True)).clamp(min=1e-300)], dim=-1) for each in pair)
    return float((p * (p / q).log()).sum(-1).mean())


def probe(reference: Engine, branch: Engine, stored: StoredLogits) -> dict[str, Any]:
    """The shipped probe (BF16 weights and states, every token scored) on the same chunks, and its error."""
    from q36eval.kl.scoring import Scorer

    requests = [ScoreRequest(key=str(i), token_ids=tuple(map(int, row))) for i, row in enumerate(stored.tokens)]

    def states_of(engine: Engine) -> Tensor:
        hidden_states = {each.request.key: each.hidden_states for each in engine.score(requests)}
        return torch.cat([hidden_states[request.key] for request in requests])  # type: ignore[misc]

    labels = torch.from_numpy(stored.tokens[:, 1:].reshape(-1).astype(np.int64))
    captured, capture = timed(lambda: states_of(reference))
    scorer = Scorer(branch, reference.output_head())
    kept: list[Tensor] = []

    def score() -> TokenFigures:
        kept.append(states_of(branch))
        return scorer.figures(captured, kept[0], labels)

    figures, scoring = timed(score)
    heads = [engine.output_head().weight.double() for engine in (reference, branch)]
    exact, rounded = [], []
    for rows in torch.arange(len(labels)).split(512):
        p, q = ((states[rows].double() @ head.T) for states, head in zip((captured, kept[0]), heads, strict=True))
        exact.append(float64_divergence(p.numpy(), q.numpy()))
        rounded.append(token_figures(p.bfloat16(), q.bfloat16(), labels[rows]).forward_kl.numpy())
    truth = np.concatenate(exact)
    width = captured.shape[1]
    return {
        "tokens": len(labels),
        "bytes": 2 * width + 4,
        "capture": capture,
        "scoring": scoring,
        "mean": float(truth.mean()),
        "errors": errors(figures.forward_kl.numpy(), truth),
        "bf16_errors": errors(np.concatenate(rounded), truth),
    }


def errors(divergences: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[float, float]:
    """Error of the mean, and the largest of any token, in nats."""
    return abs(float(divergences.mean() - truth.mean())), float(np.abs(divergences - truth).max())


def statistics_table(printed: dict[str, dict[str, float]]) -> None:
    """One row per figure, one column per way of computing it."""
    names = list(printed)
    print("| figure | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for figure in printed[names[0]]:
        print(f"| {figure} | " + " | ".join(f"{printed[name][figure]:.6f}" for name in names) + " |")


def compare(name: str, tool: Path, converter: Path, place: Path, base: dict[str, Any]) -> None:
    """One branch: the tool's figures, our formulas' and its own formulas' on the same logits; then cost and error."""
    stored: StoredLogits = base["stored"]
    engine = open_engine(EngineSettings(build(name), emulate_activations=False))
    gguf = as_gguf(engine, name, converter, place)
    command = [str(tool), "-m", str(gguf), *FLAGS, "--kl-divergence", "--kl-divergence-base", str(base["file"])]
    output, spent = timed(lambda: run(command))
    probed = probe(base["engine"], engine, stored)
    logits = float32_logits_of(engine, stored)
    labels = stored.labels.reshape(-1)
    rows = stored.rows.reshape(len(labels), -1)
    reference: NDArray[np.float32] = base["logits"]
    peer = peer_figures(rows, logits, labels)
    exact = float64_divergence(reference, logits)
    figures = token_figures(*(torch.from_numpy(x) for x in (reference, logits, labels.astype(np.int64))))
    printed = {"llama-perplexity": parse_printed(output), "its formulas": peer.printed(), "q36eval": ours(figures)}
    printed["llama-perplexity"] = {key: printed["llama-perplexity"][key] for key in printed["q36eval"]}
    print(f"\n### `{name}`: {len(labels)} tokens, the same logits\n")
    statistics_table(printed)
    own = peer_figures(stored_rows(reference), logits, labels)
    print(f"\nLeft out by llama.cpp (log p <= -16): {share_left_out(stored):.1%} of all (token, vocabulary) pairs; ")
    print(f"labels below the clamp: {int((figures.reference_logprob.numpy() < -16).sum())}.")
    print(f"Smallest KL of a token: {float(peer.kld.min()):.2e} by its formulas, {float(exact.min()):.2e} exactly.")
    print(f"Top-20 and the rest as one: {top_k_bound(reference, logits):.6f}, a lower bound.\n")
    print("| | bytes per scored token | reference, wall (CPU) s | branch, wall (CPU) s | scored tokens | ", end="")
    print("error of the mean | of the worst token |\n|---|---|---|---|---|---|---|")
    theirs = rows.nbytes / len(labels), base["spent"], spent, len(labels), errors(own.kld, exact)
    mine = probed["bytes"], probed["capture"], probed["scoring"], probed["tokens"], probed["errors"]
    for title, (size, first, second, count, wrong) in {"llama.cpp": theirs, "q36eval": mine}.items():
        print(
            f"| {title} | {size:,.0f} | {first.wall:.1f} ({first.cpu:.1f}) | {second.wall:.1f} ({second.cpu:.1f}) ",
            end="",
        )
        print(f"| {count:,} | {wrong[0]:.1e} | {wrong[1]:.1e} |")
    print(f"\nFrom logits rounded to BF16: {probed['bf16_errors'][0]:.1e}, {probed['bf16_errors'][1]:.1e}.", flush=True)


def share_left_out(stored: StoredLogits) -> float:
    """The share of the reference's log-probabilities that its divergence skips."""
    rows = stored.rows.reshape(-1, stored.rows.shape[-1])
    return float((restored(rows, stored.vocabulary) <= -16).mean())


def main() -> None:
    """Convert, run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", type=Path, help="llama-perplexity")
    parser.add_argument("converter", type=Path, help="convert_hf_to_gguf.py of the same source")
    parser.add_argument("--branches", nargs="+", default=["main", "fp8-head", "gptq-int4"])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=-1, help="how many at most (default: all)")
    parser.add_argument("--keep", type=Path, help="keep what was written in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        engine = open_engine(EngineSettings(SANDBOX / "bf16", emulate_activations=False))
        text, file = place / "corpus.txt", place / "base.logits"
        text.write_text(corpus_text(), encoding="utf-8")
        gguf = as_gguf(engine, "bf16", arguments.converter, place)
        command = [str(arguments.tool), "-m", str(gguf), *FLAGS, "-c", str(arguments.context)]
        command += ["-b", str(4 * arguments.context), "--chunks", str(arguments.chunks)]
        output, spent = timed(lambda: run([*command, "-f", str(text), "--kl-divergence-base", str(file)]))
        stored = read_stored(file)
        print(
            "The reference, from the logits before they are stored: "
            + output[output.rindex("PPL = ") :].splitlines()[0]
        )
        widened = open_engine(EngineSettings(SANDBOX / "bf16", emulate_activations=False))
        logits = float32_logits_of(widened, stored)
        base = {"engine": engine, "file": file, "stored": stored, "spent": spent, "logits": logits}
        for name in arguments.branches:
            compare(name, arguments.tool, arguments.converter, place, base)


def corpus_text() -> str:
    """The sandbox's documents in their order, an empty line between two."""
    from q36eval.run.materials import corpus_of

    _, documents = corpus_of("sandbox", None, Paths.default())
    return "\n\n".join(document.text for document in documents)


if __name__ == "__main__":
    main()
