"""Where weights lie, compared: `python benchmarks/placements.py FOLDER [--device cuda] [--limit-gib 24]`.

Writes random NVFP4 content into FOLDER where it holds no checkpoint yet (as `full_shape.py`), then loads it decoded,
packed and layer by layer, each in a process of its own, and scores the same random documents: seconds to load and to
score, memory of device and host, and whether final states and logits are the same bits. Prints a Markdown table with
ratios to the decoded model of the same run, and JSON to `--out`. A placement that does not fit says so. `--placements`
chooses some; `--cold` forgets the files' pages before each, and says how long reading them all took.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from full_shape import GIB, drop_cache, read_all, resident, write

PLACEMENTS = ("decoded", "packed", "layers")


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One placement, in this process."""
    import random
    from types import SimpleNamespace

    import torch

    from q36eval.checkpoints import load_model
    from q36eval.checkpoints.opened import hold, opened_once
    from q36eval.checkpoints.packed import weight_bytes
    from q36eval.engines.base import ScoreRequest
    from q36eval.engines.layer_by_layer import LayerByLayerEngine
    from q36eval.engines.resident import ResidentEngine
    from q36eval.records import DeploymentIdentity

    on_gpu = arguments.device.startswith("cuda")
    if on_gpu and arguments.limit_gib and arguments.placement != "decoded":
        share = arguments.limit_gib * GIB / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    rng = random.Random(1)
    requests = [
        ScoreRequest(f"{n}", tuple(rng.choices(range(1000), k=arguments.tokens))) for n in range(arguments.documents)
    ]
    if arguments.long:
        requests.append(ScoreRequest("long", tuple(rng.choices(range(1000), k=arguments.long)), arguments.long - 64))
    identity = DeploymentIdentity(
        checkpoint_sha256="0", tokenizer_sha256="0", chat_template_sha256="0", engine="benchmark", engine_version="0"
    )
    tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=0)
    with opened_once():
        held, started = hold(folder), time.perf_counter()
        loaded = load_model(held, device=arguments.device, placement=arguments.placement)
        load_seconds = time.perf_counter() - started
        print(f"{arguments.placement}: loaded in {load_seconds:.1f} s", file=sys.stderr, flush=True)
        engine: Any = (
            ResidentEngine(loaded.model, tokenizer, identity)
            if loaded.layers is None
            else LayerByLayerEngine(loaded.model, tokenizer, identity, layers=loaded.layers, held=held)
        )
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        started, hashes, scored_tokens = time.perf_counter(), {}, 0
        told = started
        for scored in engine.score(requests):
            assert scored.hidden_states is not None, scored.error
            states = scored.hidden_states.cpu()
            scored_tokens += len(scored.request.token_ids)
            if time.perf_counter() - told > 10:
                told = time.perf_counter()
                print(f"{len(hashes)} texts after {told - started:.0f} s", file=sys.stderr, flush=True)
            logits = engine.logits(states[-8:]).cpu()
            both = states.view(torch.int16).numpy().tobytes() + logits.numpy().tobytes()
            hashes[scored.request.key] = hashlib.sha256(both).hexdigest()
        seconds = time.perf_counter() - started
    memory = {}
    if on_gpu:
        told = torch.cuda.memory_stats()
        memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        memory |= {"emptied": told["num_alloc_retries"], "out_of_memory": told["num_ooms"]}
    return {
        "load": load_seconds,
        "score": seconds,
        "tokens": scored_tokens,
        "weights": weight_bytes(engine.model) if loaded.layers is None else loaded.layers.decoded_bytes,
        "host_peak": resident("VmHWM"),
        "sha256": hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest(),
        **memory,
    }


def in_its_own_process(placement: str) -> dict[str, Any] | None:
    """The figures of one placement; None where it does not fit."""
    command = [sys.executable, __file__, *sys.argv[1:], "--placement", placement]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        print(f"{placement}: it ended with exit code {ended.returncode}", flush=True)
        return None
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Write what is missing, measure each placement, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--long", type=int, default=0, help="one more document, of so many tokens")
    parser.add_argument("--limit-gib", type=float, default=0.0, help="what the allocator may take, but for decoded")
    parser.add_argument("--placement", choices=PLACEMENTS, help=argparse.SUPPRESS)
    parser.add_argument("--placements", choices=PLACEMENTS, nargs="+", default=list(PLACEMENTS))
    parser.add_argument("--cold", action="store_true", help="from the disk, not from the files' pages in memory")
    parser.add_argument("--out", type=Path, help="all figures, in JSON")
    arguments = parser.parse_args()
    if arguments.placement:
        print(json.dumps(measure(arguments.folder, arguments)))
        return
    if not (arguments.folder / "model.safetensors.index.json").exists():
        write(arguments.folder, arguments.layers, arguments.experts)
    reading: float | None = None
    rows: dict[str, dict[str, Any] | None] = {}
    for placement in arguments.placements:
        if arguments.cold:
            print(f"file cache {drop_cache(arguments.folder)}", flush=True)
            if reading is None:
                reading = read_all(arguments.folder)
                drop_cache(arguments.folder)
        rows[placement] = row = in_its_own_process(placement)
        if row is not None:
            print(f"{placement}: loaded in {row['load']:.1f} s, scored in {row['score']:.1f} s", flush=True)
    if reading is not None:
        print(f"reading all bytes took {reading:.1f} s\n")
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"limit_gib": arguments.limit_gib, "read": reading, "rows": rows}, indent=1)
        )
    first = next((row for row in rows.values() if row is not None), None)
    print(
        "| placement | load | scoring | tokens/s | weights on the device "
        "| device, allocated / reserved | host peak | same bits |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for placement, row in rows.items():
        if row is None or first is None:
            print(f"| {placement} | does not fit | | | | | | |")
            continue
        ratio = row["score"] / first["score"]
        device = " / ".join(f"{row[key] / GIB:.2f}" for key in ("allocated", "reserved") if key in row) or "host"
        print(
            f"| {placement} | {row['load']:.1f} s | {row['score']:.1f} s ({ratio:.2f}×) "
            f"| {row['tokens'] / row['score']:,.0f} "
            f"| {row['weights'] / GIB:.2f} GiB | {device} | {row['host_peak'] / GIB:.2f} GiB "
            f"| {'yes' if row['sha256'] == first['sha256'] else 'NO'} |"
        )


if __name__ == "__main__":
    main()
