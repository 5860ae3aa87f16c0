"""One module per stored format: which parts it needs, how they decode, what it does to activations.

Every format decodes in the precision its own library uses and is rounded once, to the model's dtype, by the loader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats import compressed, gptq, modelopt, plain
from q36eval.checkpoints.formats.activations import ActivationScheme
from q36eval.checkpoints.schemes import Scheme

if TYPE_CHECKING:
    import torch

__all__ = ["FORMATS", "ActivationScheme", "Format"]

Parts = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Format:
    """A stored format: part names, decoder, and the activation quantization it stands for."""

    required: frozenset[str]
    optional: frozenset[str]
    decode: Callable[[Parts, Scheme], "torch.Tensor"]
    activations: Callable[[Parts, Scheme], ActivationScheme | None]


def _format(
    required: set[str],
    optional: set[str],
    decode: Callable[[Parts, Scheme], "torch.Tensor"],
    activations: Callable[[Parts, Scheme], ActivationScheme | None],
) -> Format:
    return Format(frozenset(required), frozenset(optional), decode, activations)


_PLAIN_LAYOUT = _format({"weight", "weight_scale"}, {"weight_zero_point"}, compressed.decode, compressed.activations)

FORMATS: dict[str, Format] = {
    "nvfp4-pack-quantized": _format(
        {"weight_packed", "weight_scale", "weight_global_scale"},
        {"input_global_scale"},
        compressed.decode,
        compressed.activations,
    ),
    "pack-quantized": _format(
        {"weight_packed", "weight_scale", "weight_shape"},
        {"weight_zero_point", "weight_g_idx"},
        compressed.decode_packed,
        compressed.activations,
    ),
    "float-quantized": _PLAIN_LAYOUT,
    "int-quantized": _PLAIN_LAYOUT,
    "naive-quantized": _PLAIN_LAYOUT,
    "gptq": _format({"qweight", "qzeros", "scales"}, {"g_idx"}, gptq.decode, lambda parts, scheme: None),
    "modelopt-nvfp4": _format(
        {"weight", "weight_scale", "weight_scale_2"}, {"input_scale"}, modelopt.decode, modelopt.activations
    ),
    "plain": _format({"weight"}, set(), plain.decode, lambda parts, scheme: None),
}
