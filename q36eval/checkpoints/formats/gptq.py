"""GPTQ serialization: `qweight` [in · bits / 32, out], `qzeros` [groups, out · bits / 32], `scales`, `g_idx` [in].

value = scale · (q − zero), in float32. Version 1 stores zero-points minus one (modulo 2^bits), version 2 as they are.
Producers store those of one version under the name of the other. The zero-point of a symmetric grid is 2^(bits − 1) in
either version: both are decoded as kernels do that read no zero-points (`symmetric_offset`).
Values are a dense stream of bits, lowest first, so that with 3 bits some lie across two words.
"""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.parts import (
    FLOATS,
    Parts,
    ceil_divide,
    need_dtypes,
    need_matrix,
    need_shape,
    unpack_words,
)
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    bits = int(scheme.setting("bits"))
    need_dtypes(parts, _DTYPES)
    words, out = need_matrix("qweight", parts["qweight"])
    columns = words * 32 // bits
    groups = 1 if group_size(scheme, columns) >= columns else ceil_divide(columns, group_size(scheme, columns))
    need_shape("scales", parts["scales"], (groups, out))
    need_shape("qzeros", parts["qzeros"], (groups, ceil_divide(out * bits, 32)))
    if "g_idx" in parts:
        need_shape("g_idx", parts["g_idx"], (columns,))
    elif scheme.setting("desc_act"):
        raise CorruptCheckpointError(
            "tensor-missing", "g_idx is missing, which weights ordered by activation (desc_act) need"
        )
    return out, columns


_DTYPES = {"qweight": ("int32",), "qzeros": ("int32",), "scales": FLOATS, "g_idx": ("int32", "int64")}


def group_size(scheme: Scheme, columns: int) -> int:
    """Columns of one group; −1 in the configuration means all of them."""
    size = scheme.setting("group_size")
    return columns if size is None or size == -1 else int(size)


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] in float32."""
    import torch

    bits, maximum = int(scheme.setting("bits")), 2 ** int(scheme.setting("bits")) - 1
    out, columns = shape(parts, scheme)
    q = unpack_words(parts["qweight"], bits)
    stored_zeros = unpack_words(parts["qzeros"].T, bits).T[:, :out]
    declared = int(scheme.setting("zero_offset"))
    offset = symmetric_offset(stored_zeros, bits) if scheme.setting("sym") else None
    zeros = (stored_zeros + (declared if offset is None else offset)) & maximum
    scales = parts["scales"].float()
    group = parts.get("g_idx", torch.arange(columns, device=q.device) // group_size(scheme, columns)).long()
    if int(group.min()) < 0 or int(group.max()) >= len(scales):
        raise CorruptCheckpointError(
            "group-index-invalid", f"g_idx does not name one of {len(scales)} groups for each of {columns} columns"
        )
    decoded: torch.Tensor = (q - zeros[group]).float().mul_(scales[group]).T
    return decoded


def symmetric_offset(stored_zeros: "torch.Tensor", bits: int) -> int | None:
    """What makes zero-points, as stored, those of a symmetric grid; None where they are not all of one version."""
    centre = 2 ** (bits - 1)
    return next((offset for offset in (0, 1) if bool((stored_zeros == centre - offset).all())), None)


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of outputs [start, stop), which lie along the second axis."""
    bits = int(scheme.setting("bits"))
    zeros = parts["qzeros"][:, start * bits // 32 : ceil_divide(stop * bits, 32)]
    cut = {"qweight": parts["qweight"][:, start:stop], "qzeros": zeros, "scales": parts["scales"][:, start:stop]}
    return {**parts, **cut}
