"""Loading a checkpoint at the full shape of Qwen3.6-35B-A3B: `python benchmarks/full_shape.py FOLDER [--device cuda]`.

Writes random NVFP4 content into FOLDER where it holds no checkpoint yet (about 22 GiB at the full shape; `--layers` and
`--experts` make it smaller), then compares, alternately and each from a cold file cache where the system lets us drop
it, plain sequential reading of the same bytes with the strict loader decoding them into a BF16 model. Every load runs
in a process of its own, so that its peak memory is its own. Prints a Markdown table, and JSON to `--out`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GIB = 2**30
BUFFER = 16 * 2**20
GROUP, BLOCK = 16, 128
ROUNDS = 2


def settings(layers: int, experts: int) -> dict[str, Any]:
    """transformers' defaults are the 35B-A3B shape; `layers` and `experts` may make it smaller."""
    from transformers import Qwen3_5MoeTextConfig

    full: dict[str, Any] = Qwen3_5MoeTextConfig().to_dict()
    kinds = full["layer_types"][:layers]
    changed = {"num_hidden_layers": layers, "num_experts": experts, "layer_types": kinds}
    return full | changed | {"architectures": ["Qwen3_5MoeForCausalLM"], "quantization_config": recipe()}


def recipe() -> dict[str, Any]:
    """The card's fp8-head branch: NVFP4 on experts and attention projections, FP8_BLOCK on the head."""
    from compressed_tensors.quantization import preset_name_to_scheme

    nvfp4, fp8 = (
        preset_name_to_scheme(name, [target]).model_dump(mode="json")
        for name, target in (("NVFP4", r"re:.*(expert\w*|self_attn)\..*_proj$"), ("FP8_BLOCK", "re:.*lm_head$"))
    )
    groups = {"a": nvfp4 | {"format": "nvfp4-pack-quantized"}, "b": fp8 | {"format": "float-quantized"}}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}


class Content:
    """Random stored tensors, cut from one block of random bytes: the sandbox of a disk, not of a language."""

    def __init__(self, seed: int = 0) -> None:
        import torch

        self._random = torch.Generator().manual_seed(seed)
        self._bytes = torch.randint(0, 256, (2**28,), dtype=torch.uint8, generator=self._random)

    def raw(self, *shape: int) -> Any:
        """Random bytes."""
        import math

        import torch

        begin = int(torch.randint(0, 2**20, (1,), generator=self._random))
        return self._bytes[begin : begin + math.prod(shape)].clone().view(shape)

    def bf16(self, *shape: int, scale: float = 0.02) -> Any:
        """Values of about `scale`, some rows repeated where the tensor is large."""
        import torch

        rows = min(shape[0], 4096)
        some = (torch.randn(rows, *shape[1:], generator=self._random) * scale).bfloat16()
        return some if rows == shape[0] else some.repeat(-(-shape[0] // rows), *(1 for _ in shape[1:]))[: shape[0]]

    def nvfp4(self, name: str, out: int, columns: int) -> dict[str, Any]:
        """One weight of about 0.02: random FP4 under local scales between 0.5 and 1 and a global scale of 100."""
        import torch

        local = (self.raw(out, columns // GROUP) % 8 + 0x30).view(torch.float8_e4m3fn)
        return {
            f"{name}.weight_packed": self.raw(out, columns // 2),
            f"{name}.weight_scale": local,
            f"{name}.weight_global_scale": torch.tensor([100.0]),
            f"{name}.input_global_scale": torch.tensor([200.0]),
        }


def shapes_by_shard(config: dict[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The model's parameters, one shard a layer; embeddings, final norm and head are the `rest`."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig.from_dict(plain))
    by_shard: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        key = name.split(".layers.")[1].split(".")[0] if ".layers." in name else "rest"
        by_shard.setdefault(key, {})[name] = tuple(parameter.shape)
    return by_shard


def shards(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The stored tensors, shard by shard."""
    content = Content()
    for shapes in shapes_by_shard(config).values():
        tensors: dict[str, Any] = {}
        for name, shape in shapes.items():
            tensors |= stored(content, name, shape)
        yield tensors


def stored(content: Content, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the recipe stores for one parameter."""
    import torch

    module = name.removesuffix(".weight")
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        halves = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        out = shape[1] // len(halves)
        places = (f"{module.rpartition('.')[0]}.{e}.{half}" for e in range(shape[0]) for half in halves)
        return {part: t for place in places for part, t in content.nvfp4(place, out, shape[2]).items()}
    if (".self_attn." in name or ".shared_expert." in name) and name.endswith("_proj.weight"):
        return content.nvfp4(module, *shape)
    if module == "lm_head":
        grid = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
        values = content.raw(2**14, shape[1]) % 120  # finite and positive in FP8
        head = values.repeat(-(-shape[0] // 2**14), 1)[: shape[0]].view(torch.float8_e4m3fn)
        return {f"{module}.weight": head, f"{module}.weight_scale": torch.full(grid, 1e-4, dtype=torch.bfloat16)}
    return {name: content.bf16(*shape)}


def write(folder: Path, layers: int, experts: int) -> None:
    """A sharded checkpoint; its index is written last."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = settings(layers, experts)
    (folder / "config.json").write_text(json.dumps(config))
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards(config)):
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def drop_cache(folder: Path) -> str:
    """Forget the files' pages; says how, as far as the system allows it."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        return "dropped"
    except OSError:
        for file in folder.glob("*.safetensors"):
            with file.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return "advised away"


def read_all(folder: Path) -> float:
    """Seconds to read every weight file from one end to the other, into one buffer."""
    buffer = bytearray(BUFFER)
    started = time.perf_counter()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return time.perf_counter() - started


def load(folder: Path, device: str, forward: bool) -> dict[str, float]:
    """Load once in this process: seconds, and peaks above what was there before, in bytes."""
    import torch

    from q36eval.checkpoints import load_model

    on_gpu = device != "cpu"
    if on_gpu:
        torch.zeros(1, device=device)
        torch.cuda.reset_peak_memory_stats()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.perf_counter()
    model = load_model(folder, device=device).model
    if on_gpu:
        torch.cuda.synchronize()
    figures = {"seconds": time.perf_counter() - started, "host_peak": float(resident("VmHWM") - before)}
    figures["model"] = float(sum(parameter.nbytes for parameter in model.parameters()))
    if on_gpu:
        figures["device_peak"] = float(torch.cuda.max_memory_allocated())
    if forward:
        figures |= forwarded(model, device)
    return figures


def forwarded(model: Any, device: str) -> dict[str, float]:
    """A forward pass of 4 × 1,024 random tokens with emulated activations, the second one timed; all finite."""
    import torch

    ids = torch.randint(0, model.config.vocab_size, (4, 1024), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.inference_mode():
        for _ in range(2):
            if device != "cpu":
                torch.cuda.synchronize()
            started = time.perf_counter()
            states = model.model(input_ids=ids, use_cache=False).last_hidden_state
            finite = bool(torch.isfinite(states).all())
            seconds = time.perf_counter() - started
    return {"tokens_per_second": ids.numel() / seconds, "finite": float(finite)}


def resident(field: str) -> int:
    """A figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def in_process_of_its_own(folder: Path, device: str, *, forward: bool) -> dict[str, float]:
    command = [sys.executable, __file__, str(folder), "--device", device, "--load-only", *["--forward"] * forward]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, device: str) -> dict[str, Any]:
    """Both ways of reading, alternately; the last load also runs the model."""
    from q36eval.checkpoints import open_checkpoint

    sizes = [entry.n_bytes for entry in open_checkpoint(folder).tensors.values()]
    reads, loads, cache = [], [], ""
    for round_ in range(ROUNDS):
        cache = drop_cache(folder)
        reads.append(read_all(folder))
        cache = drop_cache(folder)
        loads.append(in_process_of_its_own(folder, device, forward=round_ == ROUNDS - 1))
        print(f"read in {reads[-1]:.1f} s, loaded in {loads[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return {
        "checkpoint_bytes": sum(sizes),
        "tensors": len(sizes),
        "largest_tensor": max(sizes),
        "cache": cache,
        "read_seconds": reads,
        "warm_read_seconds": read_all(folder),
        "loads": loads,
        "warm_load": in_process_of_its_own(folder, device, forward=False),
    }


def table(figures: dict[str, Any], device: str) -> str:
    """The figures as Markdown."""
    ratios = [one["seconds"] / read for one, read in zip(figures["loads"], figures["read_seconds"], strict=True)]
    last = figures["loads"][-1]
    rows = {
        "machine": f"{machine(device)}, {os.cpu_count()} cores",
        "checkpoint": f"{figures['checkpoint_bytes'] / GIB:.2f} GiB in {figures['tensors']:,} tensors, the largest "
        f"{figures['largest_tensor'] / GIB:.3f} GiB",
        "model in BF16": f"{last['model'] / GIB:.2f} GiB",
        f"reading the bytes, cache {figures['cache']}": spread(figures["read_seconds"], "s"),
        f"loading, cache {figures['cache']}": spread([one["seconds"] for one in figures["loads"]], "s"),
        "loading / reading": spread(ratios, ""),
        "reading and loading from a warm cache": f"{figures['warm_read_seconds']:.1f} s, "
        f"{figures['warm_load']['seconds']:.1f} s",
        "peak host memory above the start": f"{max(one['host_peak'] for one in figures['loads']) / GIB:.3f} GiB",
    }
    if "device_peak" in last:
        above = max(one["device_peak"] - one["model"] for one in figures["loads"])
        rows["peak device memory above the model"] = f"{above / GIB:.3f} GiB"
    rows["forward, inputs quantized"] = f"{last['tokens_per_second']:,.0f} tokens/s, finite: {bool(last['finite'])}"
    return "\n".join(["| what | figure |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f} to {max(values):.2f})".replace("  ", " ")


def machine(device: str) -> str:
    import torch

    return platform.machine() if device == "cpu" else torch.cuda.get_device_name(device)


def main() -> None:
    """Write what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--load-only", action="store_true")
    parser.add_argument("--forward", action="store_true")
    arguments = parser.parse_args()
    if arguments.load_only:
        print(json.dumps(load(arguments.folder, arguments.device, arguments.forward)))
        return
    if not (arguments.folder / "model.safetensors.index.json").is_file():
        started = time.perf_counter()
        write(arguments.folder, arguments.layers, arguments.experts)
        print(f"written in {time.perf_counter() - started:.0f} s", flush=True)
    figures = measure(arguments.folder, arguments.device)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1))
    print(table(figures, arguments.device))


if __name__ == "__main__":
    main()
