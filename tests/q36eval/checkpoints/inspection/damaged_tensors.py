"""Ways to damage the tensors of a copy of a sandbox checkpoint, each returning what an inspection must name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .damage import EXPERT, WEIGHTS, Tensors, edit_json, edit_tensors


def _up_projection(part: str, change: Callable[[torch.Tensor], object]) -> Callable[[Path], str]:
    """A damage that changes one stored part of one expert."""

    def damaged(folder: Path) -> str:
        edit_tensors(folder, lambda tensors: change(tensors[f"{EXPERT}.up_proj.{part}"]))
        return f"{EXPERT}.up_proj.weight"

    return damaged


global_scale_off_by_two = _up_projection("weight_global_scale", lambda scale: scale.mul_(2))
global_scale_off_by_half = _up_projection("weight_global_scale", lambda scale: scale.mul_(0.5))
gptq_scale_off_by_two = _up_projection("scales", lambda scales: scales.mul_(2))


def zeroed_expert_scales(folder: Path) -> str:
    name = f"{EXPERT}.down_proj.weight_scale"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros_like(tensors[name])}))
    return name


def one_zeroed_group(folder: Path) -> str:
    name = f"{EXPERT}.down_proj.weight_scale"

    def zero(tensors: Tensors) -> None:
        scales = tensors[name].float()
        scales[5, 2] = 0
        tensors[name] = scales.to(tensors[name].dtype)

    edit_tensors(folder, zero)
    return name


def swapped_experts(folder: Path) -> str:
    def swap(tensors: Tensors) -> None:
        other = EXPERT.removesuffix("4") + "2"
        for name in [name for name in tensors if name.startswith(EXPERT + ".")]:
            twin = name.replace(EXPERT, other)
            tensors[name], tensors[twin] = tensors[twin], tensors[name]

    edit_tensors(folder, swap)
    return f"{EXPERT}.gate_proj.weight"


def uniform_poison(folder: Path) -> str:
    """Every routed expert 10 % too large: nobody stands out, and GPTQ may cost as much error."""

    def poison(tensors: Tensors) -> None:
        for name in tensors:
            if ".mlp.experts." in name and name.endswith("weight_global_scale"):
                tensors[name].div_(1.1)

    edit_tensors(folder, poison)
    return "model.layers.0.mlp.experts.0.down_proj.weight"


def transposed_block_scales(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight_scale": tensors["lm_head.weight_scale"].T}))
    return "lm_head.weight"


def transposed_block_scales_of_the_same_shape(folder: Path) -> str:
    """The grid written column by column: the header cannot tell."""

    def rewrite(tensors: Tensors) -> None:
        scale = tensors["lm_head.weight_scale"]
        tensors["lm_head.weight_scale"] = scale.T.contiguous().reshape(scale.shape)

    edit_tensors(folder, rewrite)
    return "lm_head.weight"


def nan_scale(folder: Path) -> str:
    def poison(tensors: Tensors) -> None:
        tensors["lm_head.weight_scale"].view(-1)[3] = float("nan")

    edit_tensors(folder, poison)
    return "lm_head.weight_scale"


def nan_in_bf16(folder: Path) -> str:
    name = "model.layers.1.linear_attn.out_proj.weight"
    edit_tensors(folder, lambda tensors: tensors[name].view(-1).__setitem__(7, float("inf")))
    return name


def short_head(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"][:-1]}))
    return "lm_head.weight"


def quantized_linear_attention(folder: Path) -> str:
    """A DeltaNet projection as the neighbouring NVFP4 weight of the same shape, declared as such."""
    module = "model.layers.1.linear_attn.out_proj"

    def quantize(tensors: Tensors) -> None:
        del tensors[f"{module}.weight"]
        donor = "model.layers.2.self_attn.o_proj."
        for name in [name for name in tensors if name.startswith(donor)]:
            tensors[name.replace(donor, module + ".")] = tensors[name]

    def declare(config: dict[str, Any]) -> None:
        quantization = config["quantization_config"]
        quantization["ignore"].remove(module)
        next(iter(quantization["config_groups"].values()))["targets"].append(module)

    edit_tensors(folder, quantize)
    edit_json(folder, "config.json", declare)
    return f"{module}.weight"


def _plain_expert(folder: Path, reference: Path) -> None:
    original = load_file(reference / WEIGHTS)

    def restore(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(EXPERT + ".")]:
            del tensors[name]
        tensors.update({name: tensor for name, tensor in original.items() if name.startswith(EXPERT + ".")})

    edit_tensors(folder, restore)


def expert_left_out(folder: Path) -> str:
    """Restored to BF16 and put on the ignore list, as a producer does with what its recipe missed."""
    _plain_expert(folder, Path(__file__).parents[4] / "data" / "sandbox" / "bf16")

    def declare(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"].append(f"re:{EXPERT}.*")

    edit_json(folder, "config.json", declare)
    return f"{EXPERT}.gate_proj.weight"


def gptq_other_zero_point(folder: Path) -> str:
    _up_projection("qzeros", lambda zeros: zeros.add_(1))(folder)
    return f"{EXPERT}.up_proj.qzeros"


def other_unquantized_weight(folder: Path) -> str:
    name = "model.layers.1.linear_attn.out_proj.weight"
    edit_tensors(folder, lambda tensors: tensors[name].view(-1)[:1].mul_(1.01))
    return name


def nan_in_what_is_left_out(folder: Path) -> str:
    name = "mtp.fc.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.full((4, 4), float("nan"))}))
    return name


def negative_scale(folder: Path) -> str:
    def negate(tensors: Tensors) -> None:
        tensors["lm_head.weight_scale"].view(-1)[3] *= -1

    edit_tensors(folder, negate)
    return "lm_head.weight_scale"


def head_declared_as_gptq(folder: Path) -> str:
    """`lm_head: true`, and the head is stored in BF16."""
    edit_json(folder, "config.json", lambda config: config["quantization_config"].update(lm_head=True))
    return "lm_head.weight"


def gptq_head(folder: Path) -> str:
    """The head in 4 bits, rounded to nearest in groups of 128, of which the configuration knows nothing."""

    def quantize(tensors: Tensors) -> None:
        weight = tensors.pop("lm_head.weight").float().unflatten(1, (-1, 128))
        scale = (weight.abs().amax(-1) / 7).half()
        codes = ((weight / scale.unsqueeze(-1).float()).round().clamp(-8, 7) + 8).flatten(1).long()
        words = (codes.unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)).sum(-1)
        zeros = torch.full((scale.shape[1], len(codes) // 8), 0x77777777)
        tensors |= {"lm_head.qweight": words.int().T, "lm_head.qzeros": zeros.int(), "lm_head.scales": scale.T}

    edit_tensors(folder, quantize)
    return "lm_head.weight"
