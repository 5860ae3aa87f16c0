"""The engine at the full shape on a GPU, before and after: `python benchmarks/steps.py FOLDER [--rows 1 64 256]`.

FOLDER holds an NVFP4 checkpoint of random content (`placements.py` and `full_shape.py` write it; this writes it where
it is missing). In one process: loading, a forward pass over `--documents` of 2,048 tokens with inputs as they are and
quantized, and decoding at each number of rows, each by plain operations ("before") and by the kernels and recorded
steps ("after"), with allocated and reserved memory. Prints Markdown tables, and JSON to `--out`; `--profile` adds the
kernels that take the time. `--limit-gib` is what torch may allocate, as on a smaller card: what does not fit says so.
"""

import argparse
import contextlib
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
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
    from q36eval.checkpoints import emulation
    from q36eval.engines.fused_layers import plain_layers

    with (
        patch.object(emulation.InputQuantizer, "_in_one_pass", False),
        patch.object(emulation, "has_triton", lambda: False),
        plain_layers(),
    ):
        yield


@contextlib.contextmanager
def inputs_as_they_are() -> Iterator[None]:
    """No input is quantized."""
    from q36eval.checkpoints import emulation

    def as_it_is(self: Any, x: Any, expert: Any = None, source: Any = None) -> Any:
        return x if source is None else x[source]

    with patch.object(emulation.InputQuantizer, "forward", as_it_is):
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


def prefill(model: Any, documents: int, batch: int, after_only: bool) -> dict[str, Any]:
    """Tokens a second of a forward pass over `batch` documents without the head, and the peak of its memory."""
    import torch

    ids = torch.randint(0, 1000, (documents, TOKENS), generator=torch.Generator().manual_seed(1)).cuda()

    @torch.inference_mode()
    def forward() -> None:
        for begin in range(0, documents, batch):
            model.model(input_ids=ids[begin : begin + batch], use_cache=False)

    rates = {}
    with inputs_as_they_are():
        rates["inputs as they are"] = documents * TOKENS / seconds_of(forward)
    if not after_only:
        with by_plain_operations():
            rates["quantized, plain operations (before)"] = documents * TOKENS / seconds_of(forward, 1)
    rates["quantized, kernels (after)"] = documents * TOKENS / seconds_of(forward)
    base = rates["inputs as they are"]
    print(f"\n| forward, batches of {batch} × {TOKENS:,} | tokens/s | to the first |\n|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / base:.2f}× |")
    peak = memory()
    print(
        f"| vLLM 0.26, not run here | {VLLM_PREFILL:,} | |\n\npeak of it, allocated / reserved: {peak} GiB", flush=True
    )
    return {"batch": batch, "tokens_per_second": rates, "peak_gib": peak}


def decoding(
    model: Any, rows: int, steps: int, prompt: int, after_only: bool
) -> tuple[list[list[int]], dict[str, Any]]:
    """Milliseconds a step by both, with what each held; of the second alone where that is asked."""
    import torch

    from q36eval.engines import decoding as code
    from q36eval.engines.steps import StepMemory

    generator = torch.Generator().manual_seed(rows)
    prompts = torch.randint(0, 1000, (rows, prompt), generator=generator).tolist()
    figures: dict[str, Any] = {}

    def timed(budget: int, own: Any) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        code.decode(model, prompts, [budget] * rows, set(), 0, memory=own)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    before = min(steps, 12)
    figures["before"] = figures["before, kernels alone"] = math.nan
    if not after_only:
        timed(2, None)
        with by_plain_operations():
            figures["before"] = (timed(before, None) - timed(2, None)) / (before - 2) * 1e3
        figures["before, kernels alone"] = (timed(before, None) - timed(2, None)) / (before - 2) * 1e3
    figures["memory before"] = memory()
    own = StepMemory(model)
    timed(4, own)
    figures["recording"] = own.recorded_s
    figures["not recorded"] = own.not_recorded
    figures["after"] = (timed(steps, own) - timed(4, own)) / (steps - 4) * 1e3
    figures["memory after"] = memory()
    figures["held"] = own.bytes / GIB
    figures["memory"] = own
    return prompts, figures


def agreement(model: Any) -> dict[str, list[str]]:
    """How far the pass in other company, steps over a growing cache and recorded steps lie from one pass over the same
    tokens: mean KL."""
    import torch
    from transformers import DynamicCache

    from q36eval.engines.decoding import _GrowingSteps
    from q36eval.engines.steps import StepMemory, Steps

    rows, prompt, steps = 8, 384, 24
    ids = torch.randint(0, 1000, (rows, prompt + steps), generator=torch.Generator().manual_seed(2)).cuda()

    def taken(kind: str) -> Any:
        cache = DynamicCache(config=model.config)
        model.model(input_ids=ids[:, :prompt], past_key_values=cache, use_cache=True)
        begins = torch.zeros(rows, dtype=torch.long, device="cuda")
        by: Any = (
            Steps(StepMemory(model), cache.layers, begins, prompt, prompt + steps)
            if kind == "recorded"
            else _GrowingSteps(model, cache, begins, prompt, masked=False)
        )
        return torch.stack([by.next(ids[:, at]).log_softmax(-1) for at in range(prompt, prompt + steps)], 1)

    @torch.inference_mode()
    def figures() -> list[str]:
        whole = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, prompt:]
        again = model.model(input_ids=ids[:3], use_cache=False).last_hidden_state[:, prompt:]
        passes, company = (model.lm_head(states).float().log_softmax(-1) for states in (whole, again))
        pairs = (
            (passes[:3], company),
            (passes, taken("growing")),
            (passes, taken("recorded")),
        )
        return [f"{(p.exp() * (p - q)).sum(-1).mean().item():.1e}" for p, q in pairs]

    print("\n| mean KL to one pass, nats | the same pass in other company | steps, growing cache | recorded |")
    print("|---|---|---|---|")
    kls = {"inputs quantized": figures()}
    with inputs_as_they_are():
        kls["inputs as they are"] = figures()
    for name, values in kls.items():
        print(f"| {name} | {' | '.join(values)} |", flush=True)
    return kls


def or_too_much(call: Callable[[], Any], what: str) -> Any:
    """What `call` gives; None, and a sentence, where memory runs out."""
    import torch

    try:
        return call()
    except torch.OutOfMemoryError as error:
        print(f"{what} does not fit: {str(error).splitlines()[0][:160]}", flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return None


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
    from q36eval.engines import fused_layers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[2], help="documents in a pass; the engine has 8")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--placement", default="decoded")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--after-only", action="store_true", help="leave out what was before: it takes minutes")
    parser.add_argument("--limit-gib", type=float, help="what torch may allocate, as on a smaller card")
    parser.add_argument("--out", type=Path, help="all figures, in JSON")
    arguments = parser.parse_args()
    if arguments.limit_gib is not None:
        share = arguments.limit_gib * GIB / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    if not (arguments.folder / "model.safetensors.index.json").exists():
        started = time.perf_counter()
        write(arguments.folder, arguments.layers, 256)
        print(f"written in {time.perf_counter() - started:.0f} s", flush=True)
    started = time.perf_counter()
    with opened_once():
        model = load_model(hold(arguments.folder), device="cuda", placement=arguments.placement).model
    torch.cuda.synchronize()
    fused_layers.install()
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "placement": arguments.placement,
        "limit_gib": arguments.limit_gib,
        "load_seconds": time.perf_counter() - started,
        "load_peak_gib": memory(),
        "host_peak_gib": resident("VmHWM") / GIB,
        "steps": {},
    }
    print(
        f"loaded {arguments.placement} in {figures['load_seconds']:.1f} s; device {figures['load_peak_gib']} GiB, "
        f"host peak {figures['host_peak_gib']:.1f} GiB",
        flush=True,
    )
    documents, after_only = arguments.documents, arguments.after_only
    figures["prefill"] = [
        or_too_much(partial(prefill, model, documents, batch, after_only), f"a pass of {batch} × {TOKENS:,} tokens")
        for batch in arguments.batch
    ]
    figures["kl"] = or_too_much(lambda: agreement(model), "8 rows of 408 tokens with steps of both kinds")
    columns = ("rows", "before", "before, with kernels", "after", "times faster", "vLLM")
    columns += ("recording", "held", "peak before", "after")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    last: Any = None
    for rows in arguments.rows:
        measured = or_too_much(
            partial(decoding, model, rows, arguments.steps, arguments.prompt, after_only),
            f"answering {rows} rows",
        )
        if measured is None:
            figures["steps"][rows] = None
            continue
        prompts, found = last = measured
        figures["steps"][rows] = {name: value for name, value in found.items() if name != "memory"}
        print(
            f"| {rows} | {found['before']:.1f} ms | {found['before, kernels alone']:.1f} ms | {found['after']:.1f} ms "
            f"| {found['before'] / found['after']:.1f} | {VLLM_MS.get(rows, '')} ms "
            f"| {found['recording']:.1f} s | {found['held']:.1f} GiB "
            f"| {found['memory before']} | {found['memory after']} |"
            + (f" NOT RECORDED: {found['not recorded']}" if found["not recorded"] else ""),
            flush=True,
        )
        if rows != arguments.rows[-1]:
            found.clear()
            last = measured = None
            gc.collect()
            torch.cuda.empty_cache()
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=1))
    if arguments.profile and last is not None:
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
