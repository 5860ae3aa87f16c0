"""GPTQ serialization: `qweight` [in · bits / 32, out], `qzeros` [groups, out · bits / 32], `scales`, `g_idx` [in].

value = scale · (q − zero), in float32. Version 1 stores zero-points minus one (modulo 2^bits), version 2 as they are.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from q36eval.checkpoints.schemes import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch


def unpack_rows(packed: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Unsigned integers [n · 32 / bits, m] from int32 words [n, m], lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    values = (packed.unsqueeze(1) >> shifts[None, :, None]) & (2**bits - 1)
    unsigned: torch.Tensor = values.flatten(0, 1)
    return unsigned


def decode(parts: Mapping[str, "torch.Tensor"], scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in] in float32."""
    import torch

    bits, maximum = int(scheme.setting("bits")), 2 ** int(scheme.setting("bits")) - 1
    q = unpack_rows(parts["qweight"], bits)
    zeros = (unpack_rows(parts["qzeros"].T, bits).T + int(scheme.setting("zero_offset"))) & maximum
    scales = parts["scales"].float()
    columns, groups = q.shape[0], scales.shape[0]
    if zeros.shape != scales.shape or scales.shape[1] != q.shape[1] or columns % groups:
        raise CorruptCheckpointError(
            f"qweight, qzeros and scales do not fit: {tuple(q.shape)}, {tuple(zeros.shape)}, {tuple(scales.shape)}"
        )
    in_order = torch.arange(columns, device=q.device) // (columns // groups)
    group = parts.get("g_idx", in_order).long()
    if group.shape != (columns,) or int(group.min()) < 0 or int(group.max()) >= groups:
        raise CorruptCheckpointError(f"g_idx does not name one of {groups} groups for each of {columns} columns")
    decoded: torch.Tensor = ((q - zeros[group]).float() * scales[group]).T
    return decoded
