"""OCP microscaling: FP4 E2M1 or FP8 E4M3 values, 32 of a row under one power of two.

value = element · 2^(stored − 127); the stored exponent is E8M0 and 255 stands for NaN (OCP Microscaling Formats 1.0,
sections 5.1 and 5.4.1; `weight_scale` [out, in / 32] as bytes). MXFP4 has two elements per byte, low nibble first, in
`weight_packed` (compressed-tensors) or `weight` (Model Optimizer) [out, in / 2]; MXFP8 has `weight` [out, in] in both.
A product with a power of two is exact, so float32 decodes to the values that both libraries give in their own dtypes.

GPT-OSS stores the experts of a layer together (`mxfp4`): `weight_packed` [experts, out, in / 32, 16] and `weight_scale`
[experts, out, in / 32] become the parameter [experts, in, out] (transformers' `convert_moe_packed_tensors`).
"""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.parts import (
    ActivationScheme,
    Parts,
    need_dtypes,
    need_matrix,
    need_shape,
    rows_along,
    shared_exponents,
    unpack_fp4,
)
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

GROUP_SIZE = 32


def _values(parts: Parts, scheme: Scheme) -> tuple[str, bool]:
    """Name of the part that holds the elements, and whether two of them share a byte."""
    return ("weight_packed" if "weight_packed" in parts else "weight"), "mxfp4" in scheme.format


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    name, packed = _values(parts, scheme)
    need_dtypes(parts, {name: ("uint8",) if packed else ("float8_e4m3fn",), "weight_scale": ("uint8",)})
    out, width = need_matrix(name, parts[name])
    columns = width * (2 if packed else 1)
    if columns % GROUP_SIZE:
        raise CorruptCheckpointError(
            "group-size-mismatch", f"{columns} columns do not divide into groups of {GROUP_SIZE}"
        )
    need_shape("weight_scale", parts["weight_scale"], (out, columns // GROUP_SIZE))
    return out, columns


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] in float32."""
    shape(parts, scheme)
    name, packed = _values(parts, scheme)
    values = unpack_fp4(parts[name]) if packed else parts[name].float()
    scale = shared_exponents(parts["weight_scale"]).unsqueeze(-1)
    decoded: torch.Tensor = (values.reshape(len(values), -1, GROUP_SIZE) * scale).flatten(-2)
    return decoded


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of rows [start, stop)."""
    return rows_along(parts, start, stop, {"weight": 1, "weight_packed": 1, "weight_scale": 1})


def experts_shape(parts: Parts, scheme: Scheme) -> tuple[int, int, int]:
    """[experts, in, out] of the parameter, after checking that both parts fit it."""
    need_dtypes(parts, {"weight_packed": ("uint8",), "weight_scale": ("uint8",)})
    stored = tuple(parts["weight_packed"].shape)
    if len(stored) != 4 or stored[3] != GROUP_SIZE // 2:
        raise CorruptCheckpointError(
            "tensor-shape", f"the blocks have shape {stored}, (experts, rows, groups, {GROUP_SIZE // 2}) is needed"
        )
    need_shape("the scales of its blocks", parts["weight_scale"], stored[:3])
    experts, out, groups, _ = stored
    return experts, groups * GROUP_SIZE, out


def decode_experts(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded parameter [experts, in, out] in float32."""
    experts, columns, out = experts_shape(parts, scheme)
    values = unpack_fp4(parts["weight_packed"]) * shared_exponents(parts["weight_scale"]).unsqueeze(-1)
    return values.reshape(experts, out, columns).transpose(1, 2)


def some_experts(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of experts [start, stop)."""
    return {part: stored[start:stop] for part, stored in parts.items()}


def modelopt_activations(parts: Parts, scheme: Scheme) -> ActivationScheme:
    """Inputs microscaled as the weights are, their exponents rounded up as Model Optimizer does.

    Its exporter (0.47) writes weight-only configurations under the same names, without config groups: they are judged
    as what the name says.
    """
    return ActivationScheme(scheme.format.removeprefix("modelopt-"), GROUP_SIZE, exponent="up")
