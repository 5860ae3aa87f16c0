"""Weights that are stored alike, decoded together to the bits of each alone: parts stacked along a new first axis.

One scale of a whole weight becomes one value per weight. Other formats are decoded as what they are row by row: a stack
of weights is one taller weight, where no block of scales and no word of packed integers lies across two of them.
"""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats.compressed import plain_name
from q36eval.checkpoints.formats.parts import Parts, unpack_fp4
from q36eval.checkpoints.scheme import Scheme

if TYPE_CHECKING:
    import torch

ALONG_COLUMNS = {"qweight", "qzeros", "scales"}
"""Parts whose second axis is that of the outputs."""
SAME_FOR_ALL = {"weight_shape", "weight_g_idx", "g_idx"}
_FP4_GROUP = 16


def can_be_stacked(parts: Parts, scheme: Scheme, out: int) -> bool:
    """Whether `decode_stacked` decodes these parts of weights of `out` rows, of which each weight's fit together."""
    import torch

    if scheme.format == "gguf":
        return False
    same = [parts[name] for name in SAME_FOR_ALL & parts.keys()]
    if any(not torch.equal(part, part[:1].expand_as(part)) for part in same):
        return False
    if scheme.format == "nvfp4-pack-quantized":
        return parts["weight_global_scale"].dim() > 1  # the library divides in another precision by a bare number
    weights = getattr(scheme.compressed, "weights", None)
    if scheme.format == "pack-quantized" and plain_name(getattr(weights, "strategy", None)) == "tensor":
        return False
    bits = scheme.setting("bits") or getattr(weights, "num_bits", 8)
    packs_zeros = "qzeros" in parts or (scheme.format == "pack-quantized" and "weight_zero_point" in parts)
    return out % _block_height(scheme) == 0 and not (packs_zeros and out * bits % 32)


def _block_height(scheme: Scheme) -> int:
    weights = getattr(scheme.compressed, "weights", None)
    if weights is not None:
        return int(weights.block_structure[0]) if plain_name(weights.strategy) == "block" else 1
    block = scheme.setting("block")
    return int(block[0]) if block else 1


def decode_stacked(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weights [weights, out, in], of parts that fit together and `can_be_stacked`."""
    if scheme.format == "plain":
        return FORMATS["plain"].decode(parts, scheme)
    if scheme.format == "nvfp4-pack-quantized":
        scale = parts["weight_scale"].bfloat16() / _whole(parts["weight_global_scale"])
        return _fp4(parts["weight_packed"], scale).bfloat16()
    if scheme.format == "modelopt-nvfp4":
        return _fp4(parts["weight"], parts["weight_scale"].float() * _whole(parts["weight_scale_2"].float()))
    weights = getattr(scheme.compressed, "weights", None)
    if weights is not None and plain_name(weights.strategy) == "tensor":
        scale = _whole(parts["weight_scale"])
        values = parts["weight"].to(scale.dtype)
        if "weight_zero_point" in parts:
            values = values - _whole(parts["weight_zero_point"]).to(scale.dtype)
        return values * scale
    by_block_or_row = scheme.setting("block") is not None or scheme.setting("per_channel")
    if scheme.format in ("fp8", "modelopt-fp8") and not by_block_or_row:
        whole = parts["weight_scale" if "weight_scale" in parts else "weight_scale_inv"]
        return parts["weight"].float().mul_(_whole(whole.float()))
    count = len(next(iter(parts.values())))
    decoded = FORMATS[scheme.format].decode(taller(parts), scheme)
    return decoded.reshape(count, -1, decoded.shape[-1])


def taller(parts: Parts) -> "dict[str, torch.Tensor]":
    """The parts of the one weight that has the rows of all."""
    tall: dict[str, torch.Tensor] = {}
    for name, stacked in parts.items():
        if name == "weight_shape":
            tall[name] = stacked[0].flatten() * stacked.new_tensor([len(stacked), 1])
        elif name in SAME_FOR_ALL:
            tall[name] = stacked[0]
        elif name in ALONG_COLUMNS:
            tall[name] = stacked.transpose(0, 1).flatten(1)
        else:
            tall[name] = stacked.flatten(0, 1) if stacked.dim() > 1 else stacked
    return tall


def _whole(scale: "torch.Tensor") -> "torch.Tensor":
    """One value per weight, as what broadcasts to its values."""
    return scale.reshape(-1, 1, 1)


def _fp4(packed: "torch.Tensor", scale: "torch.Tensor") -> "torch.Tensor":
    """Float32 products of FP4 values and the scale of each group."""
    values = unpack_fp4(packed)
    by_group = values.view(*scale.shape, _FP4_GROUP) * scale.unsqueeze(-1)
    return by_group.view(values.shape)
