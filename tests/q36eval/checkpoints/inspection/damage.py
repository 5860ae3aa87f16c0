"""Edits to a copy of a checkpoint: tensors, headers, JSON files; and the damages that several test modules make."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OWN_FILE = "hf_quant_config.json"
SANDBOX = Path(__file__).parents[4] / "data" / "sandbox"
EXPERT = "model.layers.3.mlp.experts.4"
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
Tensors = dict[str, Tensor]
Damage = Callable[[Path], object]


def inspected(folder: Path, reference: Path | None = SANDBOX / "bf16") -> Inspection:
    return inspect_checkpoint(folder, reference, weights_workers=2)


def edit_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    contiguous = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def edit_json(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    change(document)
    (folder / name).write_text(json.dumps(document), encoding="utf-8")


def edit_header(folder: Path, change: Callable[[dict[str, Any]], object], encoding: str = "utf-8") -> None:
    data = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    blob = json.dumps(header).encode(encoding)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(blob)) + blob + data[8 + length :])


def fp4_bytes(values: Tensor) -> Tensor:
    """Two codes a byte, the low nibble first; to nearest."""
    code = torch.bucketize(values.abs().contiguous(), (FP4[1:] + FP4[:-1]) / 2) + 8 * (values < 0)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)


def fused(tensors: Tensors) -> Tensors:
    """Experts as `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I]."""
    together = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in {name.partition(".experts.")[0] for name in tensors.keys() - together.keys()}:
        experts = f"{layer}.experts"
        numbers = range(sum(name.startswith(f"{experts}.") for name in tensors) // 3)
        gate, up, down = (
            torch.stack([tensors[f"{experts}.{number}.{part}_proj.weight"] for number in numbers])
            for part in ("gate", "up", "down")
        )
        together |= {f"{experts}.gate_up_proj": torch.cat([gate, up], 1), f"{experts}.down_proj": down}
    return together


def edit(change: Callable[[Tensors], object]) -> Damage:
    return lambda folder: edit_tensors(folder, change)


def one(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    """One tensor replaced by what `change` makes of it."""
    return edit(lambda tensors: tensors.update({name: change(tensors[name])}))


def every(*endings: str, change: Callable[[Tensor], Tensor]) -> Damage:
    """All tensors whose names end so, replaced by what `change` makes of each."""
    return edit(lambda own: own.update({name: change(own[name]) for name in own if name.endswith(endings)}))


def without(*endings: str) -> Damage:
    """All tensors whose names end so lost."""
    return edit(lambda own: [own.pop(name) for name in [*own] if name.endswith(endings)])


def parts_of(tensors: Tensors, name: str) -> list[str]:
    """A tensor, or all parts of a module or layer."""
    return [stored for stored in tensors if stored == name or stored.startswith(f"{name}.")]


def exchanged(first: str, second: str) -> Damage:
    """Everything of one tensor, module or layer under the name of the other."""

    def swap(tensors: Tensors) -> None:
        for name in parts_of(tensors, first):
            twin = second + name.removeprefix(first)
            tensors[name], tensors[twin] = tensors[twin], tensors[name]

    return edit(swap)


def in_config(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_json(folder, "config.json", change)


def config(**changes: Any) -> Damage:
    return in_config(lambda document: document.update(changes))


def quantization(**changes: Any) -> Damage:
    return in_config(lambda document: document["quantization_config"].update(changes))


def bits(tensor: Tensor) -> Tensor:
    """The same bytes as integers."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.view(width)


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def sharded(change: Callable[[Path, dict[str, str]], object]) -> Damage:
    """The checkpoint in two files with an index, which `change` may damage before it is written."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        names = sorted(tensors)
        files = {name: ONE if n < len(names) // 2 else TWO for n, name in enumerate(names)}
        for file in (ONE, TWO):
            save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
        (folder / WEIGHTS).unlink()
        change(folder, files)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))

    return damage


def flip(file: Path) -> None:
    """Another mantissa of the last value, in place: still a checkpoint, of other weights."""
    with file.open("r+b") as stream:
        stream.seek(-2, 2)
        byte = stream.read(1)[0]
        stream.seek(-2, 2)
        stream.write(bytes([byte ^ 1]))


def truncated(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1000])


def stray_file(folder: Path) -> None:
    (folder / "extra.safetensors").write_bytes((folder / WEIGHTS).read_bytes())


dead_ignore_list = quantization(ignore=["re:.*nothing_here.*"])


def other_generation_config(folder: Path) -> None:
    edit_json(folder, "generation_config.json", lambda document: document.update(eos_token_id=1))


OUTPUT = "model.layers.1.linear_attn.out_proj"


def twice_as_coarse(folder: Path) -> None:
    """Every NVFP4 expert rounded to nearest on a grid twice as coarse: no value beyond half a step of it."""
    reference = load_file(SANDBOX / "bf16" / WEIGHTS)

    def round_again(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".mlp.experts." in name and name.endswith("weight_global_scale")]:
            module = name.removesuffix(".weight_global_scale")
            tensors[name] = tensors[name] / 2
            scale = (tensors[f"{module}.weight_scale"].float() / tensors[name]).repeat_interleave(16, 1)
            weight = reference[f"{module}.weight"].float()
            tensors[f"{module}.weight_packed"] = fp4_bytes(weight / scale)

    edit_tensors(folder, round_again)


def rescale(module: str, factor: float) -> Callable[[Tensors], None]:
    """Another global scale, with the local ones that make up for it: the same values, as this gate decodes them."""

    def change(tensors: Tensors) -> None:
        divided = f"{module}.weight_global_scale" in tensors
        name = f"{module}.weight_global_scale" if divided else f"{module}.weight_scale_2"
        tensors[name] = tensors[name] * (factor if divided else 1 / factor)
        local = tensors[f"{module}.weight_scale"]
        tensors[f"{module}.weight_scale"] = (local.float() * factor).to(local.dtype)

    return change


def global_scale_of_its_own(folder: Path) -> None:
    """An engine that takes the gate's for both reads the up projection twice as large."""
    edit_tensors(folder, rescale(f"{EXPERT}.up_proj", 0.5))


FP8_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


inputs_twenty_times = every("input_global_scale", change=lambda scale: scale * 20)
"""compressed-tensors divides by these: inputs are clipped at a twentieth of what was calibrated."""


def clipping_cache(folder: Path) -> None:
    """An FP8 cache whose scales stand for keys and values of up to 0.4."""
    names = [f"model.layers.{layer}.self_attn.{which}_scale" for layer in (2, 4) for which in "kv"]
    edit_tensors(folder, lambda tensors: tensors.update(dict.fromkeys(names, torch.tensor(0.001))))
    quantization(kv_cache_scheme=FP8_CACHE)(folder)
