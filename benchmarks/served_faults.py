"""What two faults of serving engines cost, and at which size a verdict turns: `python -m benchmarks.served_faults`.

`--part scales`: modules that vLLM fuses have different global scales, and the first one's is taken for all. Branches of
the sandbox's `main` whose experts' up projections are rounded anew under a global scale of their own, `FACTORS` times
as small as the gate's (`own`: gate and up each calibrated by themselves, as a producer leaves them that does not know).
What is stored is honest rounding in each; each is gated as it is stored, and as vLLM reads it.

`--part cache`: the scales of an FP8 KV cache are left unread. The sandbox's reference with values made `SMALLER` times
as small, and what they are multiplied by as much larger (the same model, bit for bit), against itself with an FP8 cache
and calibrated scales; each is gated by the stored scales, and by 1 for all.

Gates skip evals and canaries, so a verdict is that of the static criteria and the KL. Markdown rows are printed as they
come. `--state` keeps the captured reference between calls.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.fused import fused_groups
from q36eval.checkpoints.inspection.servability import as_fused
from q36eval.checkpoints.inspection.stored import units_of
from q36eval.checkpoints.weights import index_weights
from tests.branches import folder_of

SANDBOX = Path(__file__).resolve().parents[1] / "data" / "sandbox"
WEIGHTS = "model.safetensors"
FACTORS: tuple[float | None, ...] = (1.005, None, 2.0, 4.0, 1.1)
"""None stands for scales that are calibrated module by module."""
SMALLER = (0, 6, 8, 10, 12)
"""Powers of two."""
GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
Tensors = dict[str, Tensor]


def nvfp4(weight: Tensor, unit: Tensor) -> Tensors:
    """Round to nearest under a global scale that compressed-tensors divides by."""
    local = (weight.unflatten(1, (-1, 16)).abs().amax(-1) * unit / 6.0).to(torch.float8_e4m3fn)
    values = weight / (local.float() / unit).repeat_interleave(16, 1).clamp(min=1e-30)
    codes = torch.bucketize(values.abs(), (GRID[1:] + GRID[:-1]) / 2) + 8 * (values < 0)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)
    return {"weight_packed": packed, "weight_scale": local, "weight_global_scale": unit.reshape(1)}


def with_own_scales(folder: Path, factor: float | None) -> Path:
    """A copy of `main` whose up projections have a global scale of their own."""
    shutil.copytree(folder_of("main"), folder)
    tensors, original = load_file(folder / WEIGHTS), load_file(SANDBOX / "bf16" / WEIGHTS)
    gates = [name.removesuffix(".weight") for name in original if ".mlp.experts." in name and "gate_proj" in name]
    for gate in gates:
        modules = {gate: 1.0, gate.replace("gate_proj", "up_proj"): factor}
        weights = {module: original[f"{module}.weight"].float() for module in modules}
        largest = torch.stack([weight.abs().max() for weight in weights.values()]).max()
        for module, times in modules.items():
            own = weights[module].abs().max() if factor is None else largest * (times or 1.0)
            parts = nvfp4(weights[module], 6.0 * 448.0 / own)
            tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def errors_as_fused(folder: Path) -> list[float]:
    """By how much values of the up projections are off where the gate's global scale is taken, each weight's share."""
    groups = fused_groups(units_of(index_weights(open_checkpoint(folder), light=True).weights))
    factors = [as_fused(members) for name, members in groups.items() if ".experts." in name]
    return [abs(each[1] - 1) for each in factors if each is not None]


def reach(folder: Path) -> dict[str, tuple[float, float]]:
    """The largest key and value of each attention layer over a few hundred tokens of the corpus."""
    from q36eval.engines import open_engine
    from q36eval.kl.corpus import load_corpus

    tokenizer = open_engine(folder).tokenizer
    model = load_model(folder).model
    found: dict[str, tuple[float, float]] = {}
    seen: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(_: Any, __: Any, output: Tensor) -> None:
            seen[name] = max(seen.get(name, 0.0), float(output.abs().max()))

        return hook

    layers = {name: module for name, module in model.named_modules() if name.endswith(".self_attn")}
    for name, module in layers.items():
        module.k_norm.register_forward_hook(watch(f"{name}.k"))
        module.v_proj.register_forward_hook(watch(f"{name}.v"))
    with torch.no_grad():
        for document in load_corpus(SANDBOX.parent / "corpus" / "sandbox")[:8]:
            model(input_ids=torch.tensor([tokenizer.encode(document.text)[:512]]))
    for name in layers:  # a rotation makes a key at most sqrt(2) times as large
        found[name] = (seen[f"{name}.k"] * 2**0.5, seen[f"{name}.v"])
    return found


def with_small_values(folder: Path, power: int, reached: dict[str, tuple[float, float]]) -> tuple[Path, Path]:
    """The reference, and the same with an FP8 cache and its scales: values 2^-power as large as they were."""
    reference, branch = (Path(shutil.copytree(SANDBOX / "bf16", folder / name)) for name in ("reference", "branch"))
    tensors = load_file(reference / WEIGHTS)
    for layer in reached:
        tensors[f"{layer}.v_proj.weight"] = tensors[f"{layer}.v_proj.weight"] * 2.0**-power
        tensors[f"{layer}.o_proj.weight"] = tensors[f"{layer}.o_proj.weight"] * 2.0**power
    save_file(tensors, reference / WEIGHTS, metadata={"format": "pt"})
    for layer, (key, value) in reached.items():
        tensors[f"{layer}.k_scale"] = torch.tensor(key / 448.0)
        tensors[f"{layer}.v_scale"] = torch.tensor(value * 2.0**-power / 448.0)
    save_file(tensors, branch / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((branch / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": [],
                                     "quantization_status": "compressed", "kv_cache_scheme": CACHE}  # fmt: skip
    (branch / "config.json").write_text(json.dumps(config))
    return reference, branch


def gated(branch: Path, state: Path, *options: str) -> tuple[str, str]:
    """(KL with interval and counts, verdict and what it hangs on) of a gate without evals and canaries."""
    command = [sys.executable, "-m", "q36eval", "--state", str(state), "gate", "--branch", str(branch), "--json",
               "--fresh", "--skip", "evals", "--skip", "canaries", *options]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    document = json.loads(done.stdout)
    document = document.get("gates", [document])[0]
    criteria = [
        c for c in document["report"]["criteria"] if c["probe"] in ("weights", "kl") and c["tier"] == "blocking"
    ]
    kl = next(c for c in criteria if c["metric"] == "kl_divergence")
    figure = "not measured: it stops at the weights"
    if kl["figure"] is not None:
        low, high = kl["figure_interval"]["lower"], kl["figure_interval"]["upper"]
        figure = f"{kl['figure']:.3g} [{low:.3g}, {high:.3g}], {kl['counts']['scored']} of {kl['counts']['total']}"
    if any(c["verdict"] == "FAIL" and c["probe"] == "weights" for c in criteria):
        criteria = [c for c in criteria if c["probe"] == "weights" or c["figure"] is not None]
    bad = {verdict: [c["id"] for c in criteria if c["verdict"] == verdict] for verdict in ("FAIL", "INCONCLUSIVE")}
    for verdict, names in bad.items():
        if names:
            return figure, f"{verdict}: {', '.join(dict.fromkeys(names))}"
    return figure, "PASS"


def measure_scales(scratch: Path, state: Path) -> None:
    """A row for every factor."""
    print(
        "| global scale of up, below the gate's | values off: median, most | KL as stored | verdict "
        "| KL as vLLM fuses | verdict |"
    )
    print("|---|---|---|---|---|---|")  # fmt: skip
    for factor in FACTORS:
        folder = with_own_scales(scratch / f"scales-{factor}", factor)
        errors = errors_as_fused(folder)
        stored, fused = gated(folder, state), gated(folder, state, "--as-served", "vllm")
        named = "its own calibration's" if factor is None else f"{factor:g} times"
        off = f"{median(errors):.2%}, {max(errors):.2%}"
        print(f"| {named} | {off} | {stored[0]} | {stored[1]} | {fused[0]} | {fused[1]} |", flush=True)


def measure_cache(scratch: Path, state: Path) -> None:
    """A row for every power."""
    reached = reach(SANDBOX / "bf16")
    print("| values 2^-n as large | largest | KL by stored scales | verdict | KL by 1 | verdict |")
    print("|---|---|---|---|---|---|")
    for power in SMALLER:
        reference, branch = with_small_values(scratch / f"cache-{power}", power, reached)
        largest = max(value for _, value in reached.values()) * 2.0**-power
        cells = [
            gated(branch, state, "--reference", str(reference), "--kv-cache-dtype", "fp8_e4m3", "--kv-scales", which)
            for which in ("stored", "ignored")
        ]
        told = " | ".join(f"{figure} | {verdict}" for figure, verdict in cells)
        print(f"| {power} | {largest:.3g} | {told} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("scales", "cache"), required=True)
    parser.add_argument("--state", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure = {"scales": measure_scales, "cache": measure_cache}[asked.part]
        measure(Path(temporary), asked.state or Path(temporary) / "state")
