"""`q36eval inspect` at the full shape of Qwen3.6-35B-A3B: `python benchmarks/inspect_shape.py FOLDER REFERENCE`.

Writes random NVFP4 content into FOLDER (20.5 GiB at the full shape) and what it decodes to, in BF16, into REFERENCE
(64.6 GiB: a folder in memory, such as /dev/shm/bf16, where the disk is smaller), where they hold no checkpoint yet.
Then it measures, each once in a process that has imported everything: reading every byte of both from one end to the
other, the rules about serving engines, the text files, the inspection without a reference, and with it. Prints a
Markdown table.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from full_shape import GIB, read_all, write

from q36eval.checkpoints.inspection import Finding, Inspection, inspect_checkpoint
from q36eval.checkpoints.inspection.configuration import expected_shapes
from q36eval.checkpoints.inspection.servability import servability_findings
from q36eval.checkpoints.inspection.stored import units_of
from q36eval.checkpoints.inspection.tokenizers import text_findings
from q36eval.checkpoints.opened import hold
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.checkpoints.weights import index_weights

TEXT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SANDBOX = Path(__file__).parents[1] / "data" / "sandbox" / "bf16"


def decode_shard(folder: Path, target: Path, file: str) -> dict[str, str]:
    """One shard of the reference: every weight of the branch's, decoded, in BF16."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    weights = index_weights(open_checkpoint(folder), light=True).weights
    mine = {name: weight for name, weight in weights.items() if weight.parts[0][1].file.name == file}
    save_file(
        {name: weight.decode_light(weight.read_parts()).bfloat16() for name, weight in mine.items()}, target / file
    )
    return dict.fromkeys(mine, file)


def write_reference(folder: Path, target: Path) -> None:
    """What the branch decodes to, shard by shard."""
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    index: dict[str, str] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for part in pool.map(decode_shard, [folder] * len(files), [target] * len(files), files):
            index |= part
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def main() -> None:
    """Write what is not there, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--experts", type=int, default=256)
    asked = parser.parse_args()
    if not asked.folder.exists():
        write(asked.folder, asked.layers, asked.experts)
    if not asked.reference.exists():
        write_reference(asked.folder, asked.reference)
    for folder in (asked.folder, asked.reference):
        for name in TEXT:
            shutil.copy(SANDBOX / name, folder)
    rows: list[tuple[str, float, str]] = []

    def timed(what: str, call: Callable[[], Any], told: Callable[[Any], str] = lambda found: "") -> None:
        begun = time.perf_counter()
        found = call()
        rows.append((what, time.perf_counter() - begun, told(found)))
        print(f"{what}: {rows[-1][1]:.1f} s {rows[-1][2]}", flush=True)

    for folder in (asked.folder, asked.reference):
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / GIB
        timed(f"read all of {size:.1f} GiB from one end to the other", partial(read_all, folder))
    checkpoint = open_checkpoint(asked.folder)
    units, shapes = units_of(index_weights(checkpoint, light=True).weights), expected_shapes(checkpoint.config)
    timed("rules about serving engines", lambda: servability_findings(checkpoint, units, shapes), found_by)
    timed("text files", lambda: text_findings(hold(asked.folder), hold(asked.reference), None), found_by)
    timed("inspect, without a reference", lambda: inspect_checkpoint(asked.folder), compared)
    timed("inspect, against the reference", lambda: inspect_checkpoint(asked.folder, asked.reference), compared)
    print(f"\n{len(checkpoint.tensors):,} tensors, {len(os.sched_getaffinity(0))} cores")
    print("\n| what | seconds | found |\n|---|---|---|")
    for what, seconds, told in rows:
        print(f"| {what} | {seconds:.1f} | {told} |")


def found_by(findings: list[Finding]) -> str:
    """How much a check found."""
    return f"{len(findings)} findings"


def compared(inspection: Inspection) -> str:
    """What an inspection found, and how much it compared."""
    return f"{len(inspection.blocking)} blocking findings, {inspection.compared_weights:,} weights compared"


if __name__ == "__main__":
    main()
