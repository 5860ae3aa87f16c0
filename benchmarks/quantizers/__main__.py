"""A real model, quantized by the tools people use and damaged in the ways people reported: what every gate says of it.

    python -m benchmarks.quantizers FOLDER [--only NAME ...] [--device cuda:0] [--jobs N]

Measures each branch and damage of `set-aside.yaml` once and keeps its record in FOLDER/records; a killed run goes on
where it stopped. For each: a gate that evaluates everything, the KL without input emulation, and as truth the
perplexity of texts and the accuracy on items that no criterion has seen (`truth`). Nothing is printed of a figure;
`tables` does that.
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
from queue import SimpleQueue
from typing import Any

from benchmarks.quantizers import truth
from benchmarks.quantizers.damages import damaged
from benchmarks.quantizers.names import REFERENCE, drawn
from benchmarks.quantizers.producers import branch
from tests import smollm2


def path_of(name: str) -> Path:
    """Where an entry is, made on the first call."""
    if name == REFERENCE:
        return smollm2.folder()
    return branch(name) if drawn()[name].kind == "branches" else damaged(name)


def linked(name: str, folder: Path) -> Path:
    """A link to an entry under its own name, by which reports call it."""
    target = path_of(name)
    link = folder / "entries" / (f"{name}.gguf" if target.suffix == ".gguf" else name)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    return link


def command(state: Path, *arguments: str) -> dict[str, Any]:
    """What a q36eval command printed as JSON, its exit code and its seconds; without output, its last words."""
    environment = os.environ | {"Q36EVAL_STATE": str(state), "NO_COLOR": "1"}
    started = time.perf_counter()
    line = [sys.executable, "-m", "q36eval", *arguments, "--json"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        printed = {"failed": done.stderr[-1500:]}
    return {"exit": done.returncode, "seconds": round(time.perf_counter() - started, 1), "printed": printed}


def measured(name: str, folder: Path, state: Path, device: str) -> None:
    """Write each part of an entry's record that is not there yet."""
    link = linked(name, folder)
    both = ("--branch", str(link), "--reference", str(folder / "entries" / REFERENCE), "--device", device)
    parts = {
        "gate": ("gate", *both, "--exhaustive", "--draws", "40"),
        "perplexity": ("kl", *both, "--corpus", str(folder / "truth" / "corpus.yaml")),
        "accuracy": ("evals", *both, "--suite", str(folder / "truth" / "suite.yaml")),
        "weights_only": ("kl", *both, "--suite", "standard", "--engine-arg", "weights_only=true"),
    }
    size = sum(file.stat().st_size for file in link.rglob("*") if file.is_file()) or link.stat().st_size
    for part, arguments in parts.items():
        file = folder / "records" / f"{name}.{part}.json"
        if not file.exists():
            record = {"name": name, "device": device, "bytes": size, **command(state, *arguments)}
            if "failed" not in record["printed"]:  # else it is tried again
                file.write_text(json.dumps(record, indent=1), encoding="utf-8")
            print(f"{name}: {part} in {record['seconds']:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what has no record yet; the reference first, whose captures all others use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(drawn()))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="entries at a time, each with a history of its own")
    asked = parser.parse_args(arguments)
    folder = asked.folder.resolve()
    (folder / "records").mkdir(parents=True, exist_ok=True)
    truth.write(folder / "truth")
    states = [folder / f"state-{number}" for number in range(asked.jobs)]
    measured(REFERENCE, folder, states[0], asked.device)
    free: SimpleQueue[Path] = SimpleQueue()
    for state in states:
        if not state.exists():
            shutil.copytree(states[0], state)
        free.put(state)

    def one(name: str) -> None:
        state = free.get()
        try:
            measured(name, folder, state, asked.device)
        except Exception as error:  # the others go on
            print(f"{name}: {error}", flush=True)
        finally:
            free.put(state)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(one, asked.only))


if __name__ == "__main__":
    main()
