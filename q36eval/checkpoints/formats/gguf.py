"""Weights in llama.cpp's blocks, decoded by the `gguf` package: what a row of blocks stands for, in float32.

`weight` holds bytes [out, bytes of a row], rows in the model's order. NVFP4 that was repacked from another checkpoint
has the scale of the whole weight in a tensor of its own, by which llama.cpp multiplies the products
(`conversion/base.py`, `_repack_nvfp4`).
"""

from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.formats.parts import Parts, need_dtypes, need_one_value
from q36eval.checkpoints.gguf.entries import columns_side_by_side
from q36eval.checkpoints.gguf.types import BY_NAME, FLOATS, BlockType
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

SCALE = "weight_scale_2"
AT_ONCE = 2**20
"""About how many values are handed to the package at once."""


def shape(parts: Parts, scheme: Scheme) -> tuple[int, ...]:
    """That of the decoded weight.

    Raises:
        CorruptCheckpointError: rows are no whole blocks, or the scale is not one number.
    """
    kind, stored = _kind(scheme), parts["weight"]
    if SCALE in parts:
        need_dtypes({SCALE: parts[SCALE]}, {SCALE: ("float32",)})
        need_one_value(SCALE, parts[SCALE])
    if kind.name in FLOATS:
        return tuple(stored.shape)
    if stored.dim() < 1 or stored.shape[-1] % kind.n_bytes:
        raise CorruptCheckpointError("tensor-shape", f"its rows are no whole blocks of {kind.name}")
    return (*stored.shape[:-1], stored.shape[-1] // kind.n_bytes * kind.values)


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """Rows [start, stop): blocks lie along a row."""
    return {**parts, "weight": parts["weight"][start:stop]}


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The weight in float32, computed on the CPU and put where its bytes lie.

    Raises:
        CorruptCheckpointError: the parts do not fit.
        UsageError: the `gguf` package is not installed.
    """
    import torch

    whole, stored, kind = shape(parts, scheme), parts["weight"], _kind(scheme)
    if kind.name in FLOATS:
        weight = stored.float()
    else:
        weight = torch.from_numpy(_dequantized(stored.cpu().numpy(), kind)).reshape(whole).to(stored.device)
    heads = scheme.setting("column_heads")
    if heads is not None:
        weight = columns_side_by_side(weight, heads)
    return weight * parts[SCALE].reshape(()) if SCALE in parts else weight


def _kind(scheme: Scheme) -> BlockType:
    return BY_NAME[scheme.setting("type")]


def check_installed(kinds: Collection[str]) -> None:
    """Refuse what cannot be decoded here, before anything is called damaged.

    Raises:
        UsageError: one of those types is decoded by the `gguf` package, and that is not installed.
    """
    blocks = sorted({*kinds} - {*FLOATS})
    found = find_spec("gguf") if blocks else None
    if blocks and (found is None or found.origin is None):  # a folder of that name is no package
        raise UsageError(
            "package-missing",
            f"{', '.join(blocks)} of a GGUF is decoded by the gguf package, which is not installed here: "
            f"pip install 'q36eval[gguf]'.",
        )


def _dequantized(blocks: Any, kind: BlockType) -> Any:
    """Float32 [rows, values] of bytes [..., bytes of a row], some rows at a time: the package takes several copies."""
    check_installed([kind.name])
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize

    rows = blocks.reshape(-1, blocks.shape[-1])
    columns = rows.shape[1] // kind.n_bytes * kind.values
    values = np.empty((len(rows), columns), dtype=np.float32)
    step = max(AT_ONCE // max(columns, 1), 1)
    with np.errstate(all="ignore"):  # what is not finite is reported, whoever made it so
        for start in range(0, len(rows), step):
            values[start : start + step] = dequantize(rows[start : start + step], GGMLQuantizationType[kind.name])
    return values
