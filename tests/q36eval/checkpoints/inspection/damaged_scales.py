"""Damage that stays inside the file's own grid, or lies in scales that are no weight's; each returns what is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .damage import EXPERT, WEIGHTS, Tensors, edit_json, edit_tensors

REFERENCE = Path(__file__).parents[4] / "data" / "sandbox" / "bf16" / WEIGHTS
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FIRST = "model.layers.0.mlp.experts.0.down_proj"
UP = f"{EXPERT}.up_proj"
Damage = Callable[[Path], str]


def erased_head(folder: Path) -> str:
    """All zero, under scales by which half a step is more than any weight."""

    def erase(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"].float()).to(torch.float8_e4m3fn)
        tensors["lm_head.weight_scale"].fill_(1792.0)

    edit_tensors(folder, erase)
    return "lm_head.weight"


def _coarser(factor: float) -> Damage:
    """Every NVFP4 expert rounded to nearest on a grid that many times as coarse: no value beyond half a step of it."""

    def damage(folder: Path) -> str:
        reference = load_file(REFERENCE)

        def round_again(tensors: Tensors) -> None:
            for name in [name for name in tensors if ".mlp.experts." in name and name.endswith("weight_global_scale")]:
                module = name.removesuffix(".weight_global_scale")
                tensors[name] = tensors[name] / factor
                scale = (tensors[f"{module}.weight_scale"].float() / tensors[name]).repeat_interleave(16, 1)
                weight = reference[f"{module}.weight"].float()
                codes = ((weight / scale).abs().unsqueeze(-1) - FP4).abs().argmin(-1) | ((weight < 0).long() << 3)
                tensors[f"{module}.weight_packed"] = (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)

        edit_tensors(folder, round_again)
        return f"{FIRST}.weight"

    return damage


twice_as_coarse, four_times_as_coarse, hundred_times_as_coarse = _coarser(2), _coarser(4), _coarser(100)


def _halved_rows(rows: int, part: str, axis: int) -> Damage:
    """The first rows of every expert at half their scale."""

    def damage(folder: Path) -> str:
        def halve(tensors: Tensors) -> None:
            for name in [name for name in tensors if ".mlp.experts." in name and name.endswith(f".{part}")]:
                scale = tensors[name].float()
                scale.narrow(axis, 0, rows).div_(2)
                tensors[name] = scale.to(tensors[name].dtype)

        edit_tensors(folder, halve)
        return f"{FIRST}.weight"

    return damage


one_halved_row, eight_halved_rows, all_rows_halved = (_halved_rows(rows, "weight_scale", 0) for rows in (1, 8, 128))
one_halved_gptq_row, eight_halved_gptq_rows = (_halved_rows(rows, "scales", 1) for rows in (1, 8))


def _gptq(part: str, change: Callable[[torch.Tensor], object]) -> Damage:
    def damage(folder: Path) -> str:
        edit_tensors(folder, lambda tensors: change(tensors[f"{UP}.{part}"]))
        return f"{UP}.weight"

    return damage


ZERO_CODES = -0x77777778
"""Eight 4-bit codes of 8, which is the symmetric zero-point."""
four_dead_gptq_rows = _gptq("qweight", lambda codes: codes[:, :4].fill_(ZERO_CODES))
doubled_gptq_groups = _gptq("scales", lambda scales: scales[0, :8].mul_(2))
gptq_row_of_noise = _gptq("qweight", lambda codes: codes[:, 3].copy_(codes[:, 3].flip(0).bitwise_not()))


def _input_scales(change: Callable[[Tensors, str], object], only: str = "") -> Damage:
    def damage(folder: Path) -> str:
        def each(tensors: Tensors) -> None:
            for name in [name for name in tensors if only in name and name.endswith("input_global_scale")]:
                change(tensors, name)

        edit_tensors(folder, each)
        return f"{UP}.input_global_scale"

    return damage


no_input_scales = _input_scales(lambda tensors, name: tensors.pop(name))
two_input_scales = _input_scales(lambda tensors, name: tensors.update({name: torch.ones(2)}), UP)
tiny_input_scales = _input_scales(lambda tensors, name: tensors[name].fill_(1e-30))
one_input_scale_far_off = _input_scales(lambda tensors, name: tensors[name].mul_(1000), UP)


def inputs_declared_unquantized(folder: Path) -> str:
    def change(config: dict[str, Any]) -> None:
        next(iter(config["quantization_config"]["config_groups"].values()))["input_activations"] = None

    edit_json(folder, "config.json", change)
    return f"{UP}.input_global_scale"


def _key_scale(layer: int, *values: float) -> Damage:
    def damage(folder: Path) -> str:
        name = f"model.layers.{layer}.self_attn.k_scale"
        edit_tensors(folder, lambda tensors: tensors.update({name: torch.tensor(values)}))
        return name

    return damage


negative_key_scale, zero_key_scale, huge_key_scale = (_key_scale(2, value) for value in (-1.0, 0.0, 1e9))
key_scales_for_other_heads = _key_scale(2, 1.0, 1.0, 1.0)
key_scale_of_linear_attention = _key_scale(0, 1.0)


def unknown_kv_cache(folder: Path) -> str:
    scheme = {"num_bits": 4, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
    edit_json(folder, "config.json", lambda config: config["quantization_config"].update(kv_cache_scheme=scheme))
    return "config.json"


def rescale(module: str, factor: float) -> Callable[[Tensors], None]:
    """Another global scale, with the local ones that make up for it: the same values, as this gate decodes them."""

    def change(tensors: Tensors) -> None:
        divided = f"{module}.weight_global_scale" in tensors
        name = f"{module}.weight_global_scale" if divided else f"{module}.weight_scale_2"
        tensors[name] = tensors[name] * (factor if divided else 1 / factor)
        local = tensors[f"{module}.weight_scale"]
        tensors[f"{module}.weight_scale"] = (local.float() * factor).to(local.dtype)

    return change


def global_scale_of_its_own(folder: Path) -> str:
    """An engine that takes the gate's for both reads the up projection twice as large."""
    edit_tensors(folder, rescale(UP, 0.5))
    return f"{EXPERT}.gate_up_proj"
