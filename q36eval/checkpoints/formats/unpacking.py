"""Packed values taken apart by vectorised code of our own: importing the formats' libraries for it takes seconds.

Tests hold each function to the library's result, bit for bit.
"""

from typing import TYPE_CHECKING

from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""FP4 E2M1 by code; bit 3 is the sign (OCP Microscaling Formats 1.0, section 5.3.3)."""


def unpack_words(packed: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Unsigned integers [n · 32 / bits, m] from int32 words [n, m], lowest bits first."""
    import torch

    count = packed.shape[0] * 32 // bits
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
        unsigned: torch.Tensor = ((packed.unsqueeze(1) >> shifts[None, :, None]) & (2**bits - 1)).flatten(0, 1)
        return unsigned
    first = torch.arange(count, device=packed.device) * bits
    word, shift = first // 32, (first % 32).unsqueeze(1)
    words = torch.cat([packed.long() & 0xFFFFFFFF, packed.new_zeros(1, packed.shape[1]).long()])
    pair = words[word] | (words[word + 1] << 32)
    across: torch.Tensor = ((pair >> shift) & (2**bits - 1)).int()
    return across


def unpack_signed(packed: "torch.Tensor", bits: int, shape: "torch.Size", packed_dim: int = 1) -> "torch.Tensor":
    """Int8 [rows, columns] from int32 words along `packed_dim`, stored with half their range added.

    The signature is that of compressed-tensors' `unpack_from_int32`.

    Raises:
        CorruptCheckpointError: the words are not int32.
    """
    import torch

    if packed.dtype != torch.int32:
        raise CorruptCheckpointError(f"packed integers are stored as {packed.dtype}, not int32")
    words = packed if packed_dim == 0 else packed.T
    values = unpack_words(words, bits)[: shape[packed_dim]].sub_(2 ** (bits - 1)).to(torch.int8)
    return values if packed_dim == 0 else values.T


def unpack_fp4(packed: "torch.Tensor") -> "torch.Tensor":
    """Float32 [n, 2 m] from bytes [n, m] of two FP4 values each, the low nibble first."""
    import torch

    signed = torch.tensor([*FP4_MAGNITUDES, *(-value for value in FP4_MAGNITUDES)], device=packed.device)
    codes = packed.int()
    return torch.stack((signed[codes & 15], signed[codes >> 4]), dim=-1).flatten(-2)
