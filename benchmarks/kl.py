"""What a divergence costs beside the forward pass it is taken from, on a GPU: `python benchmarks/kl.py`.

At the full shape of Qwen3.6-35B-A3B with random weights: the divergence stage alone against copying the same bytes,
chunked torch and torch.compile; a scored forward pass against the same forward pass with its own head; the peak memory
of both. Every ratio is measured within one run, as median (smallest to largest) of rounds.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path[0] = str(Path(__file__).resolve().parents[1])  # this folder's kl.py must not hide the package

TOKENS, WIDTH, VOCABULARY = 4096, 2048, 248_320

ROUNDS = 15
ENGINE_ROWS = 512
"""Rows of logits that an engine without a reference makes at a time: what a scored pass is compared with."""
GIB = 2**30


class Stopwatch:
    """Median milliseconds of calls on a GPU, taken alternately so that they share the machine's moods."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self._rounds = rounds

    def __call__(self, calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        for call in calls.values():  # compilation and caches
            call()
            call()
        milliseconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self._rounds):
            for name, call in calls.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                milliseconds[name].append(begin.elapsed_time(end))
        return milliseconds


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def ratio(one: list[float], other: list[float]) -> str:
    return spread([a / b for a, b in zip(one, other, strict=True)])


def in_torch(reference: Tensor, branch: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The same figures in float32 torch, log-softmax and all."""
    log_p, log_q = torch.log_softmax(reference, -1), torch.log_softmax(branch, -1)
    p = log_p.exp()
    difference = log_p - log_q
    rows = torch.arange(len(labels), device=labels.device)
    return (
        (p * difference).sum(-1),
        -(log_q.exp() * difference).sum(-1),
        -(p * log_p).sum(-1),
        log_p[rows, labels],
        log_q[rows, labels],
        log_p.argmax(-1) == log_q.argmax(-1),
    )


def fused(reference: Tensor, branch: Tensor, labels: Tensor) -> Any:
    """Figures of float32 logits [T, V] by the kernel."""
    from q36eval.kl.scoring import FigureBuffer

    buffer = FigureBuffer(len(labels), reference.device)
    buffer.fill(0, reference, branch, labels)
    return buffer.figures()


def stage(rows: int = 512) -> dict[str, Any]:
    """The divergence of one tile of logits."""
    from q36eval.kl.divergence import token_figures
    from q36eval.kl.scoring import FigureBuffer

    torch.manual_seed(0)
    reference = torch.randn(rows, VOCABULARY, device="cuda") * 3
    branch = reference + torch.randn_like(reference) * 0.05
    labels = torch.randint(0, VOCABULARY, (rows,), device="cuda")
    exact = token_figures(reference[:64], branch[:64], labels[:64])
    ours = fused(reference[:64], branch[:64], labels[:64])
    theirs = in_torch(reference[:64], branch[:64], labels[:64])[0].double().cpu()
    compiled = torch.compile(in_torch, mode="max-autotune-no-cudagraphs")
    buffer = FigureBuffer(rows, reference.device)
    spare = torch.empty_like(reference)
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: spare.copy_(reference),
        "fused": lambda: buffer.fill(0, reference, branch, labels),
        "torch": lambda: in_torch(reference, branch, labels),
        "torch.compile": lambda: compiled(reference, branch, labels),
    }
    times = Stopwatch()(calls)
    moved = 2 * reference.nbytes
    print(f"divergence stage, {rows} × {VOCABULARY} float32 logits of each")
    print(f"  copying one: {spread(rates(times['copy'], moved))} TB/s")
    for name, values in times.items():
        print(f"  {name}: {spread(values)} ms; bandwidth / copy's {ratio(times['copy'], values)}")
    error, torch_error = (float((x - exact.forward_kl).abs().max()) for x in (ours.forward_kl, theirs))
    print(
        f"  forward KL {float(exact.forward_kl.mean()):.6f}; largest error: fused {error:.1e}, torch {torch_error:.1e}"
    )
    return {"times_ms": times, "bytes": moved, "error": error, "torch_error": torch_error}


def rates(milliseconds: list[float], moved: int) -> list[float]:
    return [moved / each / 1e9 for each in milliseconds]


class Branch:
    """What `Scorer` asks of an engine, and nothing else."""

    def __init__(self, head: Tensor) -> None:
        self._head = head

    def logits(self, states: Tensor) -> Tensor:
        from q36eval.engines.numerics import float32_logits

        return float32_logits(states, self._head)


def full_model() -> Any:
    """The 35B-A3B shape with random BF16 weights on the GPU."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig())
    torch.set_default_dtype(torch.float32)
    model = model.to_empty(device="cuda").eval().requires_grad_(False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(0, 0.02)
    model.set_submodule("model.rotary_emb", type(model.model.rotary_emb)(config=model.config).to("cuda"))
    return model


def scored_forward() -> dict[str, Any]:
    """A forward pass of 4 × 1,024 tokens with its own head, and the same pass scored against a reference."""
    from q36eval.kl.scoring import Scorer

    model = full_model()
    ids = torch.randint(0, VOCABULARY, (4, 1024), device="cuda")
    labels = ids.reshape(-1).cpu()
    branch: Any = Branch(model.lm_head.weight)
    head = model.lm_head.weight + torch.randn_like(model.lm_head.weight) * 1e-3
    scorer = Scorer(branch, head)
    rows = ENGINE_ROWS

    def states() -> Tensor:
        hidden: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return hidden.reshape(TOKENS, WIDTH)

    def with_head() -> None:
        hidden = states()
        for begin in range(0, TOKENS, rows):
            branch.logits(hidden[begin : begin + rows])

    with torch.inference_mode():
        reference = (states() + torch.randn(TOKENS, WIDTH, device="cuda") * 0.05).bfloat16().cpu()

        def scored() -> Any:
            return scorer.figures(reference, states(), labels)

        kept = states()
        calls: dict[str, Callable[[], Any]] = {
            "forward": states,
            "forward with its head": with_head,
            "forward, scored": scored,
            "scoring alone": lambda: scorer.figures(reference, kept, labels),
            "both heads alone": lambda: [
                (branch.logits(kept[i : i + rows]), torch.mm(kept[i : i + rows], head.T, out_dtype=torch.float32))
                for i in range(0, TOKENS, rows)
            ],
        }
        times = Stopwatch(9)(calls)
        memory = {name: peak(calls[name]) for name in ("forward with its head", "forward, scored")}
    base = times["forward with its head"]
    print(f"full shape, {TOKENS} tokens: {TOKENS / statistics.median(times['forward']) * 1e3:,.0f} tokens/s forward")
    for name, values in times.items():
        print(f"  {name}: {spread(values)} ms; / forward with its head {ratio(values, base)}")
    above = memory["forward, scored"] - memory["forward with its head"]
    print(
        f"  peak memory, scored − with its head: {(above + head.nbytes) / GIB:.3f} GiB, of which the reference's head "
        f"takes {head.nbytes / GIB:.3f}"
    )
    return {"times_ms": times, "memory": memory, "head_bytes": head.nbytes}


def peak(call: Callable[[], Any]) -> int:
    """Peak memory of a call, with all that lay there before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def main() -> None:
    """Run, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    figures = {"stage": stage(), "scored": scored_forward()}
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1, default=str))


if __name__ == "__main__":
    main()
