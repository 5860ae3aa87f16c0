"""Rounding of one weight to nearest, and to the grid of its stored parts as the pass over stacks of weights does it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.grids import Rounding, Usage, stored_grid, sums_of, usages
from q36eval.checkpoints.inspection.stored_schemes import Block

from .damage import FP4

LARGEST = {"nvfp4": 6.0, "fp8": 448.0, "int8": 127.5, "int4": 7.5, "int3": 3.5, "int2": 1.5}


def honest_rounding(
    parts: Mapping[str, Tensor], original: Tensor, block: Block | None = None, bits: int | None = None
) -> Rounding:
    shape = (original.shape[0], original.shape[1])
    grid = stored_grid({part: tensor[None] for part, tensor in parts.items()}, shape, block, bits)
    assert grid is not None
    return grid.rounding(original[None], grid.whole(original[None]))


def usage(error: Tensor, original: Tensor, rounding: Rounding) -> Usage:
    sums = sums_of(error[None], original[None], rounding)
    assert sums.on_grid is not None
    return usages(sums, sums.on_grid, rounding)[0]


@dataclass(frozen=True)
class Stored:
    """A weight as it is decoded, and the scales [out, groups] it was stored with."""

    decoded: Tensor
    scale: Tensor


def to_grid(kind: str, values: Tensor, scale: Tensor) -> Tensor:
    """The nearest values of the grid; `scale` broadcasts against `values`."""
    if kind == "fp8":
        return (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    if kind == "nvfp4":
        return FP4[((values / scale).abs().unsqueeze(-1) - FP4).abs().argmin(-1)] * values.sign() * scale
    top = int(LARGEST[kind] + 0.5)
    return (values / scale).round().clamp(-top, top - 1) * scale


def absmax(kind: str, group: int, weight: Tensor) -> Tensor:
    return weight.unflatten(1, (-1, group)).abs().amax(-1) / LARGEST[kind]


def under(kind: str, weight: Tensor, scale: Tensor) -> Stored:
    """The weight rounded to nearest under these scales [out, groups]."""
    groups = weight.unflatten(1, (scale.shape[1], -1))
    return Stored(to_grid(kind, groups, scale.unsqueeze(-1)).flatten(1), scale)


def rounding_of(kind: str, stored: Stored, weight: Tensor) -> Rounding:
    if kind == "nvfp4":
        unit = weight.abs().max() / (6 * 448)
        local = (stored.scale / unit).clamp(max=448).to(torch.float8_e4m3fn)
        packed = torch.zeros(len(weight), weight.shape[1] // 2, dtype=torch.uint8)
        parts = {"weight": packed, "weight_scale": local, "weight_scale_2": unit}
    else:
        dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
        parts = {"weight": torch.zeros(weight.shape).to(dtype), "weight_scale": stored.scale}
    return honest_rounding(parts, weight, bits=int(kind[3:]) if kind.startswith("int") else None)
