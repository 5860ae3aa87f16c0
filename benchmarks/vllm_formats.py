"""The sandbox's branches in vLLM: `python -m benchmarks.vllm_formats --engine-python PYTHON --device cuda:0 [BRANCH]`.

Of each branch `q36eval attribute --engine vllm` (the checkpoint's KL, vLLM's on top, the whole) and a whole gate by
vLLM, `--at-once` of them side by side; also gates by the engine in process where `--both` asks for it. `ruined` is
int2-experts as it decodes, in BF16, which vLLM loads. Prints Markdown; each command's JSON and messages go to `--out`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from q36eval.app import sandbox
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.weights import index_weights

BRANCHES = (
    "bf16", "main", "fp8-head", "fp8-head-embed", "w4a16", "gptq-int4", "nvfp4-modelopt", "nvfp4-mixed", "ruined",
)  # fmt: skip
BESIDE_OTHERS = ("enforce_eager=true", "gpu_memory_utilization=0.06", "kv_cache_memory_bytes=1000000000")
"""Arguments of vLLM with which several share a GPU and start within a minute."""
Said = dict[str, Any]


def write_ruined(folder: Path) -> Path:
    """int2-experts as a BF16 checkpoint."""
    import torch
    from safetensors.torch import save_file

    stored = sandbox.build("int2-experts", build_dir=folder.with_name("int2"))
    folder.mkdir(parents=True)
    weights = index_weights(open_checkpoint(stored)).weights
    decoded = {name: weight.read()[0].to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(decoded, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((stored / "config.json").read_text())
    config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    for file in stored.iterdir():
        if file.suffix != ".safetensors" and file.name not in ("config.json", "recipe.yaml"):
            shutil.copy(file, folder)
    return folder


def asked(command: Sequence[str], state: Path, out: Path, threads: int) -> Said:
    """What a command prints as JSON, its exit code and seconds; what it said goes to a file beside.

    Each gets so many threads: eight with a thread for each of 32 cores had not said a line after two minutes.
    """
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "q36eval", *command, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"Q36EVAL_STATE": str(state), "OMP_NUM_THREADS": str(threads)},
    )
    out.with_suffix(".txt").write_text(f"q36eval {' '.join(command)}\n{done.stderr}")
    out.with_suffix(".json").write_text(done.stdout)
    try:
        said: Said = json.loads(done.stdout)
    except ValueError:
        said = {"error": done.stderr.strip().splitlines()[-1:]}
    return said | {"exit": done.returncode, "seconds": time.monotonic() - begun}


def nats(layer: Said | None) -> str:
    """KL and its 95 % interval."""
    if layer is None:
        return ""
    return f"{layer['kl']:.2e} [{layer['interval']['lower']:.1e}, {layer['interval']['upper']:.1e}]"


def told(branch: str, apart: Said, gates: Sequence[Said]) -> str:
    """A row of the table."""
    cells = [branch]
    if "whole" in apart:
        cells += [nats(apart[name]) for name in ("checkpoint", "serving", "whole", "floor")]
        cells += [str(apart["arithmetic"]), str(apart["at_fault"])]
    else:
        cells += [f"exit {apart['exit']}: {apart.get('error')}", "", "", "", "", ""]
    for gate in gates:
        report = gate.get("report", {})
        cells.append(f"{report.get('verdict', gate.get('error'))} (exit {gate['exit']}, {gate['seconds']:.0f} s)")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Ask side by side, print when all is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", default=list(BRANCHES))
    parser.add_argument("--engine-python")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("vllm-formats"))
    chosen = parser.parse_args()
    out, state = chosen.out.resolve(), chosen.out.resolve() / "state"
    out.mkdir(parents=True, exist_ok=True)
    own = [] if chosen.engine_python is None else ["--engine-python", chosen.engine_python]
    shared = BESIDE_OTHERS if chosen.device != "cpu" else ()
    engine = ["--engine", "vllm", *own]
    for argument in (*shared, "mamba_ssm_cache_dtype=float32", *chosen.engine_arg):
        engine += ["--engine-arg", argument]
    device = ["--device", chosen.device]
    ways = ("apart", "served", *(["here"] if chosen.both else []))
    commands: dict[tuple[str, str], list[str]] = {}
    for branch in chosen.branches:
        which = ["--branch", str(write_ruined(out / "ruined")) if branch == "ruined" else branch, *device]
        commands[branch, "served"] = ["gate", *which, *engine]
        commands[branch, "apart"] = ["attribute", *which, *engine]
        if chosen.both:
            commands[branch, "here"] = ["gate", *which]
    # one gate captures the reference that the others wait for, so what needs no capture comes before those
    first = (chosen.branches[0], "served")
    later = sorted(commands.keys() - {first}, key=lambda key: (key[1] != "apart", chosen.branches.index(key[0])))
    threads = max(1, (os.cpu_count() or 1) // chosen.at_once)
    with ThreadPoolExecutor(chosen.at_once) as pool:
        asking = {
            key: pool.submit(asked, commands[key], state, out / "-".join(key), threads) for key in (first, *later)
        }
        titles = ["checkpoint", "vLLM on top", "whole", "floor", "arithmetic", "at fault", "gate through vLLM"]
        titles += ["gate in process"] if chosen.both else []
        print(f"| branch | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}", flush=True)
        for branch in chosen.branches:
            apart, *gates = (asking[branch, how].result() for how in ways)
            print(told(branch, apart, gates), flush=True)


if __name__ == "__main__":
    main()
