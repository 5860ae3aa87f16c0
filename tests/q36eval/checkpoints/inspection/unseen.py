"""Damage that no file can show: what is stored is what another calibration might have given."""

from pathlib import Path

import torch

from .damage import Tensors, edit_json, edit_tensors
from .damaged_hybrids import MTP
from .damaged_parts import EXPERT


def inputs_twenty_times(folder: Path) -> None:
    """compressed-tensors divides by these: inputs are clipped at a twentieth of what was calibrated."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("input_global_scale")]:
            tensors[name] = tensors[name] * 20

    edit_tensors(folder, change)


def clipping_cache(folder: Path) -> None:
    """An FP8 cache whose scales stand for keys and values of up to 0.4."""

    def change(tensors: Tensors) -> None:
        for layer in (2, 4):
            tensors |= {f"model.layers.{layer}.self_attn.{which}_scale": torch.tensor(0.001) for which in "kv"}

    edit_tensors(folder, change)
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    edit_json(folder, "config.json", lambda config: config["quantization_config"].update(kv_cache_scheme=scheme))


def small_value(folder: Path) -> None:
    def change(tensors: Tensors) -> None:
        codes = tensors[f"{EXPERT}.up_proj.weight"].view(torch.uint8).view(-1)
        codes[int((codes & 0x7F).argmin())] ^= 0x01

    edit_tensors(folder, change)


def quantized_head(folder: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[MTP] = torch.randn(tensors[MTP].shape).to(torch.float8_e4m3fn)
        tensors[MTP.replace("weight", "weight_scale")] = torch.ones(1).bfloat16()

    edit_tensors(folder, change)
