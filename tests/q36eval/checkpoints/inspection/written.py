"""The sandbox's reference written in the FP8 formats of other producers, rounded to nearest by plain code."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

QUANTIZED = re.compile(r"\.(mlp\.experts\.\d+|mlp\.shared_expert|self_attn)\.\w+_proj\.weight$")
NOT_CONVERTED = re.compile(r"(lm_head|\.linear_attn\.\w+_proj\w*|\.mlp\.gate|\.shared_expert_gate)\.weight$")
Block = tuple[int, int]
Layout = Callable[[torch.Tensor], torch.Tensor]
"""From scales [out / height, in / width] to the shape they are stored in."""
Round = Callable[[torch.Tensor], torch.Tensor]
"""What is done to values in units of their scale before they are stored in FP8."""


def same(values: torch.Tensor) -> torch.Tensor:
    return values


def two_mantissa_bits(values: torch.Tensor) -> torch.Tensor:
    """Rounded to nearest on half as fine a grid: no weight is larger or smaller as a whole."""
    return values.to(torch.float8_e5m2).float()


def fp8(weight: torch.Tensor, block: Block, rounding: Round) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes [out, in], float32 scales per block) with each block's largest value at 448."""
    height, width = (min(size, most) for size, most in zip(block, weight.shape, strict=True))
    tops = [[tile.abs().max() for tile in row.split(width, 1)] for row in weight.float().split(height)]
    scale = torch.tensor(tops) / 448
    grid = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)[: weight.shape[0], : weight.shape[1]]
    return rounding(weight.float() / grid).to(torch.float8_e4m3fn), scale


def write(
    reference: Path,
    folder: Path,
    quantization: dict[str, object],
    part: str,
    block: Block,
    layout: Layout,
    rounding: Round,
) -> list[str]:
    """A copy of the reference with `QUANTIZED` in FP8; returns their names."""
    shutil.copytree(reference, folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(name for name in tensors if QUANTIZED.search(name))
    for name in names:
        tensors[name], scale = fp8(tensors[name], block, rounding)
        tensors[name.replace("weight", part)] = layout(scale).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    return names


def fine_grained(
    reference: Path, folder: Path, block: Block | None, rounding: Round = same, static: bool = False
) -> list[str]:
    """`quant_method: fp8`, as DeepSeek and Qwen publish it; None is one scale per tensor."""
    modules = [name.removesuffix(".weight") for name in load_file(reference / "model.safetensors")
               if NOT_CONVERTED.search(name)]  # fmt: skip
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "static" if static else "dynamic",
        "weight_block_size": None if block is None else list(block),
        "modules_to_not_convert": modules,
    }
    whole = (1 << 30, 1 << 30)
    names = write(reference, folder, quantization, "weight_scale_inv", block or whole, same, rounding)
    if static:
        add_input_scales(folder, names, "activation_scale")
    return names


MODELOPT: dict[str, tuple[Block, Layout]] = {
    "FP8": ((1 << 30, 1 << 30), lambda scale: scale.reshape(())),
    "FP8_PER_CHANNEL_PER_TOKEN": ((1, 1 << 30), lambda scale: scale.reshape(-1)),
    "FP8_PB_WO": ((128, 128), lambda scale: scale[:, None, :, None]),
}
"""Model Optimizer's algorithms: block, and the shape in which it stores the scales."""


def modelopt(reference: Path, folder: Path, algorithm: str, rounding: Round = same) -> list[str]:
    """Model Optimizer's FP8."""
    block, layout = MODELOPT[algorithm]
    ignore = ["lm_head", "*.linear_attn.*", "*.mlp.gate", "*.shared_expert_gate"]
    quantization = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ignore}
    names = write(reference, folder, quantization, "weight_scale", block, layout, rounding)
    if algorithm == "FP8":
        add_input_scales(folder, names, "input_scale")
    return names


def add_input_scales(folder: Path, names: list[str], part: str) -> None:
    """Static FP8 scales of inputs of up to 10."""
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name.replace("weight", part): torch.tensor(10 / 448) for name in names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def gptq(reference: Path, folder: Path, experts: str, bits: int, sym: bool, group: int = 128) -> None:
    """Write experts whose names match again into a GPTQ checkpoint (version 1), rounded to nearest under an override
    of their own."""
    tensors, original = load_file(folder / "model.safetensors"), load_file(reference / "model.safetensors")
    top = 2**bits - 1
    for name in [name for name in original if re.search(experts, name)]:
        weight = original[name].float()
        groups = weight.unflatten(1, (-1, min(group, weight.shape[1])))
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((torch.maximum(high, -low) * 2 if sym else high - low) / top).half()
        zero = torch.full_like(scale, (top + 1) // 2) if sym else (-low / scale.float()).round()
        codes = (groups / scale.unsqueeze(-1).float() + zero.unsqueeze(-1).float()).round().clamp(0, top).flatten(1)
        module = name.removesuffix(".weight")
        tensors |= {
            f"{module}.qweight": pack(codes.T.long(), bits),
            f"{module}.qzeros": pack((zero.long() - 1) & top, bits).T.contiguous(),
            f"{module}.scales": scale.T.contiguous(),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["dynamic"][f"+:.*{experts}"] = {"bits": bits, "sym": sym}
    (folder / "config.json").write_text(json.dumps(config))


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 words [n · bits / 32, m] from integers [n, m]: one stream of bits down each column, lowest first."""
    stream = ((values.unsqueeze(1) >> torch.arange(bits)[None, :, None]) & 1).flatten(0, 1)
    stream = torch.nn.functional.pad(stream, (0, 0, 0, -len(stream) % 32)).unflatten(0, (-1, 32))
    words = (stream << torch.arange(32)[None, :, None]).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()
