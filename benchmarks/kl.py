"""What a divergence costs beside the forward pass it is taken from: `python benchmarks/kl.py [--device cuda]`.

On a GPU, at the full shape of Qwen3.6-35B-A3B with random weights: the divergence stage alone against copying the same
bytes, chunked torch, torch.compile and Liger-Kernel (where it is installed); a scored forward pass against the same
forward pass with its own head; the peak memory of both. On a CPU, on the sandbox: the whole KL probe against the bare
forward pass over the same tokens. Every ratio is measured within one run, as median (smallest to largest) of rounds.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from q36eval.probes import Progress, Sink

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


def liger(reference: Tensor, branch: Tensor) -> Callable[[], Any] | None:
    """Liger-Kernel's KL(p || q), which wants log-probabilities: one figure of our seven."""
    try:
        from liger_kernel.ops.kl_div import LigerKLDivLossFunction
    except ImportError:
        return None

    def call() -> Any:
        log_q, log_p = torch.log_softmax(branch, -1), torch.log_softmax(reference, -1)
        return LigerKLDivLossFunction.apply(log_q, log_p, "none", True)

    return call


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
    with_liger = liger(reference, branch)
    if with_liger is not None:
        calls["liger"] = with_liger
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


def rounding() -> dict[str, float]:
    """KL of float32 logits from the same logits rounded to BF16, on random logits of several scales."""
    torch.manual_seed(1)
    divergences = {}
    for scale in (1.0, 3.0, 6.0):
        logits = torch.randn(256, VOCABULARY, device="cuda") * scale
        labels = torch.zeros(256, dtype=torch.long, device="cuda")
        rounded = logits.bfloat16().float()
        divergences[str(scale)] = float(fused(logits, rounded, labels).forward_kl.mean())
    print(
        "KL(float32 logits ‖ rounded to BF16), normal logits: "
        + ", ".join(f"σ {k}: {v:.2e}" for k, v in divergences.items())
    )
    return divergences


class Outcomes(Sink):
    """What the runner writes, kept in memory: history is not what is measured here."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.measurements: list[Any] = []

    def add_items(self, outcomes: Any) -> None:
        self.items.extend(outcomes)

    def add_measurement(self, measurement: Any) -> None:
        self.measurements.append(measurement)

    def add_failure(self, failure: Any) -> None:
        raise SystemExit(failure.reason)

    def known_items(self) -> Any:
        return self.items


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


def sandbox(branch: str, rounds: int = 5) -> dict[str, Any]:
    """The KL probe on the sandbox, its reference captured before, against the bare forward pass over its tokens."""
    from q36eval.config.paths import Paths
    from q36eval.engines import EngineOptions, open_engine
    from q36eval.kl.probe import KLProbe
    from q36eval.run.materials import corpus_of
    from q36eval.run.reference import local_reference
    from q36eval.run.rounds import measure_branch, plan_probes

    paths = Paths.default()
    folder = paths.data / "sandbox"
    probe = KLProbe(corpus_of("sandbox", None, paths)[1])
    engine = open_engine(folder / branch)
    works = plan_probes([probe], engine.tokenizer, Outcomes())
    requests = [request for work in works for item in work.items for request in item.scores]
    tokens = sum(len(request.token_ids) for request in requests)
    times: dict[str, list[float]] = {"forward": [], "probe": []}
    with tempfile.TemporaryDirectory() as place:
        reference = local_reference(folder / "bf16", Path(place), EngineOptions())
        answers = reference.answers(works, Silent())
        answers.answer([(work, work.items) for work in works])
        for _ in range(rounds):
            started = time.perf_counter()
            for _each in engine.score(requests):
                pass
            times["forward"].append(time.perf_counter() - started)
            started = time.perf_counter()
            sink = Outcomes()
            measure_branch(lambda: engine, works, answers, sink, Silent())
            times["probe"].append(time.perf_counter() - started)
    print(f"sandbox, {branch}: {len(requests)} windows, {tokens} tokens, bare forward {spread(times['forward'])} s")
    print(
        f"  whole KL probe, reference captured: {spread(times['probe'])} s; / bare forward "
        f"{ratio(times['probe'], times['forward'])}"
    )
    return {"tokens": tokens, "seconds": times}


def main() -> None:
    """Run what the device allows, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--branch", default="fp8-head", help="of the sandbox, on a CPU")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    if arguments.device == "cpu":
        figures["sandbox"] = sandbox(arguments.branch)
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        figures = {"stage": stage(), "rounding": rounding(), "scored": scored_forward()}
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1, default=str))


if __name__ == "__main__":
    main()
