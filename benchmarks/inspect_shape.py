"""The weights stage at the full shape of Qwen3.6-35B-A3B: `python benchmarks/inspect_shape.py FOLDER REFERENCE`.

Writes random NVFP4 content into FOLDER (20.5 GiB at the full shape) and what it decodes to, in BF16, into REFERENCE
(64.6 GiB: a folder in memory, such as /dev/shm/bf16, where the disk is smaller), where they hold no checkpoint yet; of
the layers of the latter as many as there is room for. Of the reference's weights some are off by a little and a few by
more than their scheme allows, so that there are errors and findings to compare. Then it inspects, each once in a
process of its own: the first `--few` layers on the CPU and on `--device`, and all of them on `--device`, with and
without the reference, the last time with all of FOLDER's files hashed meanwhile, as a gate does. Prints what was found,
whether it is the same on both, and a Markdown table.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from full_shape import GIB, Content, drop_cache, machine, read_all, resident, settings, shapes_by_shard, stored

TEXT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SANDBOX = Path(__file__).parents[1] / "data" / "sandbox" / "bf16"
INDEX = "model.safetensors.index.json"
WRITERS = 8
ROOM = 2 * GIB
"""Left free beside a reference in memory."""


def write_shard(folder: Path, shard: tuple[str, dict[str, tuple[int, ...]]]) -> dict[str, str]:
    """One shard of the branch; content follows from its name alone."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    key, shapes = shard
    content = Content(seed=int(key) if key.isdigit() else 10_000)
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        tensors |= stored(content, name, shape)
    save_file(tensors, folder / f"{key}.safetensors")
    return dict.fromkeys(tensors, f"{key}.safetensors")


def decode_shard(folder: Path, target: Path, file: str) -> dict[str, str]:
    """One shard of the reference: every weight of the branch's, decoded, in BF16; some are larger."""
    import torch
    from safetensors.torch import save_file

    from q36eval.checkpoints.reader import open_checkpoint
    from q36eval.checkpoints.weights import index_weights

    torch.set_num_threads(1)
    weights = index_weights(open_checkpoint(folder), light=True).weights
    mine = {name: weight for name, weight in weights.items() if weight.parts[0][1].file.name == file}
    tensors = {}
    for number, (name, weight) in enumerate(mine.items()):
        decoded = weight.decode_light(weight.read_parts())
        factor = 1.06 if number % 300 == 7 else 1.0 if number % 4 == 0 else 1.004
        tensors[name] = (decoded if weight.scheme.format == "plain" else decoded * factor).bfloat16()
    save_file(tensors, target / file)
    return dict.fromkeys(mine, file)


def in_processes(work: Any, items: list[Any]) -> dict[str, str]:
    """The index of what all processes wrote; each takes twice the shard that it writes, of up to 1.7 GiB."""
    index: dict[str, str] = {}
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), WRITERS)) as pool:
        for part in pool.map(work, items):
            index |= part
    return index


def write_pair(folder: Path, reference: Path, layers: int, experts: int) -> int:
    """Both checkpoints, where they are not there yet; returns how many layers there was room for."""
    config = settings(layers, experts)
    shards = shapes_by_shard(config)
    if not (folder / INDEX).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        finish(folder, in_processes(partial(write_shard, folder), list(shards.items())))
    if (reference / INDEX).exists():
        return int(json.loads((reference / "config.json").read_text())["num_hidden_layers"])
    reference.mkdir(parents=True, exist_ok=True)
    sizes = {key: sum(2 * prod(shape) for shape in shapes.values()) for key, shapes in shards.items()}
    free = shutil.disk_usage(reference).free - ROOM - sizes["rest"]
    fitting = max(1, min(layers, free // sizes["0"]))
    few = few_layers(folder, folder.with_name(f"{folder.name}-{fitting}"), fitting)
    config = json.loads((few / "config.json").read_text())
    config.pop("quantization_config")
    (reference / "config.json").write_text(json.dumps(config))
    finish(reference, in_processes(partial(decode_shard, few, reference), [*map(shard_file, range(fitting)), REST]))
    return int(fitting)


def prod(shape: tuple[int, ...]) -> int:
    """How many values."""
    count = 1
    for size in shape:
        count *= size
    return count


REST = "rest.safetensors"


def shard_file(layer: int) -> str:
    """The file of a layer."""
    return f"{layer}.safetensors"


def finish(folder: Path, index: dict[str, str]) -> None:
    """Index and text files."""
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    for name in TEXT:
        shutil.copy(SANDBOX / name, folder)


def few_layers(folder: Path, target: Path, layers: int) -> Path:
    """The first layers of a checkpoint as one of its own, of links; itself where it has no more."""
    config = json.loads((folder / "config.json").read_text())
    if layers >= config["num_hidden_layers"]:
        return folder
    if (target / INDEX).exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    files = [*map(shard_file, range(layers)), REST]
    for file in files:
        (target / file).symlink_to((folder / file).resolve())
    changed = {"num_hidden_layers": layers, "layer_types": config["layer_types"][:layers]}
    (target / "config.json").write_text(json.dumps(config | changed))
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    finish(target, {name: file for name, file in index.items() if file in files})
    return target


def inspected(folder: Path, reference: Path | None, device: str, *, hashed: bool) -> dict[str, Any]:
    """One inspection in this process: seconds, peaks above what was there before, and all that it says."""
    import torch

    from q36eval.checkpoints.inspection import inspect_checkpoint
    from q36eval.checkpoints.opened import hold, opened_once

    on_gpu = device != "cpu"
    if on_gpu:
        torch.zeros(1, device=device)
        torch.cuda.reset_peak_memory_stats()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.perf_counter()
    with opened_once(), ExitStack() as hashing:
        if hashed:
            hashing.enter_context(hold(folder).hashed_ahead())
        inspection = inspect_checkpoint(folder, reference, device=device)
        alone = time.perf_counter() - started
    figures = {"seconds": time.perf_counter() - started, "inspected": alone, "cpu_seconds": time.process_time()}
    figures["host_peak"] = float(resident("VmHWM") - before)
    if on_gpu:
        figures["device_peak"] = float(torch.cuda.max_memory_allocated())
    said = inspection.model_dump(mode="json")
    return figures | {"said": {name: said[name] for name in ("findings", "measured", "errors", "compared_weights")}}


def in_process_of_its_own(folder: Path, reference: Path | None, device: str, *, hashed: bool = False) -> dict[str, Any]:
    drop_cache(folder)
    named = [str(folder), *([] if reference is None else [str(reference)])]
    command = [sys.executable, __file__, *named, "--device", device, "--inspect-only", *["--hashed"] * hashed]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(f"{folder.name} on {device}: {figures['seconds']:.1f} s", file=sys.stderr, flush=True)
    return figures


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Whether two inspections say the same, and by how much their figures differ at most."""
    findings = [(found["rule"], found["subject"], found["severity"]) for found in one["findings"]]
    there = [(found["rule"], found["subject"], found["severity"]) for found in other["findings"]]
    largest, sequel = 0.0, "equal"
    for mine, theirs in zip(one["errors"], other["errors"], strict=True):
        for name, value in mine.items():
            if isinstance(value, float) and isinstance(theirs[name], float):
                largest = max(largest, abs(value - theirs[name]) / max(abs(value), 1e-30))
            elif value != theirs[name]:
                sequel = f"{name} differs: {value} and {theirs[name]}"
    same = "the same" if findings == there and one["measured"] == other["measured"] else "NOT the same"
    return f"{len(findings)} findings, {same}; names and counts {sequel}; figures differ by {largest:.1e} at most"


def table(runs: list[tuple[str, str, dict[str, Any], float]]) -> str:
    """One line a run, as Markdown."""
    lines = ["| inspected | on | seconds | GiB/s | weights compared | host peak, GiB | device peak, GiB | blocking |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for what, device, figures, gib in runs:
        compared = figures["said"]["compared_weights"]
        blocking = sum(found["severity"] == "blocking" for found in figures["said"]["findings"])
        peak = f"{figures['device_peak'] / GIB:.2f}" if "device_peak" in figures else ""
        lines.append(
            f"| {what} | {device} | {figures['seconds']:.1f} | {gib / figures['seconds']:.2f} | "
            f"{compared:,} | {figures['host_peak'] / GIB:.2f} | {peak} | {blocking} |"
        )
    return "\n".join(lines)


def gib_in(folder: Path) -> float:
    """What its weights take."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / GIB


def place_of(folder: Path) -> str:
    """Whether a folder lies in memory or on a disk."""
    kinds = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    mounts = [(point, kind) for point, kind in kinds if folder.resolve().is_relative_to(point)]
    return "memory" if max(mounts, key=lambda mount: len(mount[0]))[1] in ("tmpfs", "ramfs") else "disk"


def main() -> None:
    """Write what is not there, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path, nargs="?")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--few", type=int, default=8, help="layers that are inspected on the CPU too")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="all figures, in JSON")
    parser.add_argument("--inspect-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--hashed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inspect_only:
        print(json.dumps(inspected(asked.folder, asked.reference, asked.device, hashed=asked.hashed)))
        return
    if asked.reference is None:
        parser.error("REFERENCE is missing")
    started = time.perf_counter()
    fitting = write_pair(asked.folder, asked.reference, asked.layers, asked.experts)
    print(f"written in {time.perf_counter() - started:.0f} s, {fitting} layers", file=sys.stderr, flush=True)
    if fitting < asked.layers:
        print(f"There was room for {fitting} layers of the reference: the others are not inspected.")
    whole = few_layers(asked.folder, asked.folder.with_name(f"{asked.folder.name}-{fitting}"), fitting)
    few = few_layers(whole, asked.folder.with_name(f"{asked.folder.name}-{asked.few}"), asked.few)
    few_reference = few_layers(
        asked.reference, asked.reference.with_name(f"{asked.reference.name}-{asked.few}"), asked.few
    )
    cache = drop_cache(whole)
    begun = read_all(whole)
    both = gib_in(whole) + gib_in(asked.reference)
    some = gib_in(few) + gib_in(few_reference)
    runs = []
    for device in ("cpu", asked.device):
        runs.append((f"{asked.few} layers", device, in_process_of_its_own(few, few_reference, device), some))
    for reference, hashed, words in (
        (None, False, f"{fitting} layers, no reference"),
        (asked.reference, False, f"{fitting} layers"),
        (asked.reference, True, f"{fitting} layers, files hashed meanwhile"),
    ):
        figures = in_process_of_its_own(whole, reference, asked.device, hashed=hashed)
        runs.append((words, asked.device, figures, gib_in(whole) if reference is None else both))
    print(f"{machine(asked.device)}, {len(os.sched_getaffinity(0))} cores")
    print(
        f"The branch ({gib_in(whole):.1f} GiB) lies on {place_of(whole)}, file cache {cache}, read from end to end in "
        f"{begun:.1f} s; the reference ({gib_in(asked.reference):.1f} GiB) in {place_of(asked.reference)}."
    )
    print(f"{asked.few} layers, cpu and {asked.device}: {difference(runs[0][2]['said'], runs[1][2]['said'])}.\n")
    print(table(runs))
    if asked.out is not None:
        asked.out.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
