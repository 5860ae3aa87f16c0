"""The engine at the full shape on a GPU, before and after: `python benchmarks/steps.py FOLDER [--rows 1 64 256]`.

FOLDER holds an NVFP4 checkpoint of random content (`placements.py` and `full_shape.py` write it; this writes it where
it is missing). In one process: loading, a forward pass over `--documents` of 2,048 tokens with inputs as they are and
quantized, and decoding at each number of rows, each by plain operations ("before") and by the kernels and recorded
steps ("after"), with allocated and reserved memory. Prints Markdown tables; `--profile` adds the kernels that take the
time.
"""

import argparse
import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
from full_shape import GIB, resident, write

TOKENS = 2048
VLLM_MS = {1: 4.1, 64: 13.5, 256: 22.5}
"""Decoding steps of vLLM 0.26 on the same card and shape, measured once; not run here."""
VLLM_PREFILL = 47_000


@contextlib.contextmanager
def by_plain_operations() -> Iterator[None]:
    """As before there were kernels: ten passes over what is quantized, experts one after the other."""
    import torch

    from q36eval.checkpoints import emulation

    def counted(expert: Any, experts: int) -> list[int]:
        counts: list[int] = torch.bincount(expert, minlength=experts).tolist()
        return counts

    with (
        patch.object(emulation.InputQuantizer, "_in_one_pass", False),
        patch.object(emulation, "_groups", counted),
    ):
        yield


@contextlib.contextmanager
def inputs_as_they_are(model: Any) -> Iterator[None]:
    """No input is quantized, by transformers' own grouped products."""
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeExperts

    from q36eval.checkpoints.emulation import QuantizedInputExperts, QuantizedInputLinear

    def plain(self: Any, states: Any, index: Any, weights: Any) -> Any:
        from transformers.integrations.moe import grouped_mm_experts_forward

        return grouped_mm_experts_forward(self, states, index, weights)

    some = next(module for module in model.modules() if isinstance(module, (QuantizedInputExperts, Qwen3_5MoeExperts)))
    for name, value in {"num_experts": some.gate_up_proj.shape[0], "has_gate": True, "has_bias": False}.items():
        for module in model.modules():
            if isinstance(module, QuantizedInputExperts):
                setattr(module, name, value)
                module.is_transposed = False
                module._apply_gate = lambda both, m=module: (  # type: ignore[assignment]
                    m.act_fn(both.chunk(2, dim=-1)[0]) * both.chunk(2, dim=-1)[1]
                )
    import torch

    with (
        patch.object(QuantizedInputExperts, "forward", plain),
        patch.object(QuantizedInputLinear, "quantize_input", lambda self, x: x),
        torch.inference_mode(),
    ):
        yield


def seconds_of(call: Any, times: int = 3) -> float:
    """The median of several, after one that compiles."""
    import torch

    call()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def memory() -> str:
    """Peaks of allocated and reserved device memory since the last reading."""
    import torch

    found = f"{torch.cuda.max_memory_allocated() / GIB:.1f} / {torch.cuda.max_memory_reserved() / GIB:.1f}"
    torch.cuda.reset_peak_memory_stats()
    return found


def prefill(model: Any, documents: int) -> None:
    """Tokens a second of a forward pass without the head."""
    import torch

    ids = torch.randint(0, 1000, (documents, TOKENS), generator=torch.Generator().manual_seed(1)).cuda()

    @torch.inference_mode()
    def forward() -> None:
        for begin in range(0, documents, 2):
            model.model(input_ids=ids[begin : begin + 2], use_cache=False)

    rates = {}
    with inputs_as_they_are(model):
        rates["inputs as they are (BF16 products)"] = documents * TOKENS / seconds_of(forward)
    with by_plain_operations():
        rates["quantized, plain operations (before)"] = documents * TOKENS / seconds_of(forward, 1)
    rates["quantized, kernels (after)"] = documents * TOKENS / seconds_of(forward)
    base = rates["inputs as they are (BF16 products)"]
    print("\n| forward, batches of 2 × 2,048 | tokens/s | to BF16 products |\n|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / base:.2f}× |")
    print(f"| vLLM 0.26, not run here | {VLLM_PREFILL:,} | |\n\npeak of it, allocated / reserved: {memory()} GiB")


def decoding(model: Any, rows: int, steps: int, prompt: int) -> tuple[list[list[int]], dict[str, Any]]:
    """Milliseconds a step by both, and what share of the answers is the same."""
    import torch

    from q36eval.engines import decoding as code
    from q36eval.engines.steps import StepMemory

    generator = torch.Generator().manual_seed(rows)
    prompts = torch.randint(0, 1000, (rows, prompt), generator=generator).tolist()
    figures: dict[str, Any] = {}
    answers: dict[str, list[list[int]]] = {}

    def timed(name: str, budget: int, own: Any) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        answers[name] = code.decode(model, prompts, [budget] * rows, set(), 0, memory=own)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    before = min(steps, 12)
    timed("before", 2, None)
    with by_plain_operations():
        figures["before"] = (timed("before", before, None) - timed("short", 2, None)) / (before - 2) * 1e3
    figures["before, kernels alone"] = (timed("before", before, None) - timed("short", 2, None)) / (before - 2) * 1e3
    figures["memory before"] = memory()
    own = StepMemory(model)
    timed("after", 4, own)
    figures["recording"] = own.recorded_s
    figures["not recorded"] = own.not_recorded
    figures["after"] = (timed("after", steps, own) - timed("short", 4, own)) / (steps - 4) * 1e3
    figures["memory after"] = memory()
    figures["held"] = own.bytes / GIB
    same = sum(
        one == other
        for a, b in zip(answers["before"], answers["after"], strict=True)
        for one, other in zip(a, b[: len(a)], strict=True)
    )
    figures["same"] = same / (rows * before)
    figures["memory"] = own
    return prompts, figures


def profiled(call: Any, title: str) -> None:
    """The kernels that take the time."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        call()
        torch.cuda.synchronize()
    events = [event for event in found.key_averages() if event.self_device_time_total > 0]
    events.sort(key=lambda event: -event.self_device_time_total)
    whole = sum(event.self_device_time_total for event in events)
    print(f"\n{title}: {whole / 1e3:.1f} ms on the device, {sum(event.count for event in events)} launches")
    for event in events[:24]:
        print(f"  {event.self_device_time_total / 1e3:8.2f} ms {event.count:6d} × {event.key[:110]}")


def main() -> None:
    """Load once, then measure."""
    import torch

    from q36eval.checkpoints import load_model
    from q36eval.checkpoints.opened import hold, opened_once

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--placement", default="decoded")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.folder / "model.safetensors.index.json").exists():
        started = time.perf_counter()
        write(arguments.folder, arguments.layers, 256)
        print(f"written in {time.perf_counter() - started:.0f} s", flush=True)
    started = time.perf_counter()
    with opened_once():
        model = load_model(hold(arguments.folder), device="cuda", placement=arguments.placement).model
    torch.cuda.synchronize()
    print(
        f"loaded {arguments.placement} in {time.perf_counter() - started:.1f} s; device {memory()} GiB, "
        f"host peak {resident('VmHWM') / GIB:.1f} GiB",
        flush=True,
    )
    prefill(model, arguments.documents)
    sys.stdout.flush()
    columns = ("rows", "before", "before, with kernels", "after", "times faster", "vLLM", "same tokens")
    columns += ("recording", "held", "peak before", "after")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    last: Any = None
    for rows in arguments.rows:
        prompts, found = decoding(model, rows, arguments.steps, arguments.prompt)
        last = prompts, found
        print(
            f"| {rows} | {found['before']:.1f} ms | {found['before, kernels alone']:.1f} ms | {found['after']:.1f} ms "
            f"| {found['before'] / found['after']:.1f} | {VLLM_MS.get(rows, '')} ms | {found['same']:.1%} "
            f"| {found['recording']:.1f} s | {found['held']:.1f} GiB "
            f"| {found['memory before']} | {found['memory after']} |"
            + (f" NOT RECORDED: {found['not recorded']}" if found["not recorded"] else ""),
            flush=True,
        )
        if rows != arguments.rows[-1]:
            found.clear()
            last = None
            gc.collect()
            torch.cuda.empty_cache()
    if arguments.profile:
        from q36eval.engines.decoding import decode

        prompts, found = last
        own = found["memory"]
        ids = torch.randint(0, 1000, (2, TOKENS)).cuda()

        @torch.inference_mode()
        def forward() -> None:
            model.model(input_ids=ids, use_cache=False)

        profiled(forward, "a forward pass over 2 × 2,048 tokens, inputs quantized")
        budgets = [6] * len(prompts)
        decode(model, prompts, budgets, set(), 0, memory=own)
        key = next(iter(own.graphs))
        with torch.inference_mode():
            profiled(lambda: own.graphs[key][0].replay(), f"one recorded step of {key}")


if __name__ == "__main__":
    main()
