"""One module per stored format: which parts it needs, how they decode, what it does to activations.

Every format decodes in the precision its own library uses and is rounded once, to the model's dtype, by the loader. A
format may import `parts`, what all of them need of stored parts, `q36eval.checkpoints.scheme`, and another format's
decoding that it shares; torch where it decodes.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats import awq, compressed, fp8, gguf, gptq, modelopt, mx, plain
from q36eval.checkpoints.formats.parts import ROWS_MULTIPLE, ActivationScheme, Parts
from q36eval.checkpoints.scheme import Scheme

if TYPE_CHECKING:
    import torch

__all__ = ["FORMATS", "ROWS_MULTIPLE", "ActivationScheme", "Format"]


@dataclass(frozen=True)
class Format:
    """A stored format: part names, decoder, and the activation quantization it stands for.

    `shape` checks that all parts fit and gives the decoded weight's shape; `rows` takes the parts of some rows of it
    (from and to multiples of `ROWS_MULTIPLE`, or any experts that are stored together), which decode by themselves to
    those rows.
    """

    required: Set[str]
    optional: Set[str]
    shape: Callable[[Parts, Scheme], tuple[int, ...]]
    rows: Callable[[Parts, Scheme, int, int], Parts]
    decode: Callable[[Parts, Scheme], "torch.Tensor"]
    activations: Callable[[Parts, Scheme], ActivationScheme | None]


def _none(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    return None


def _microscaled(values: str, activations: Callable[[Parts, Scheme], ActivationScheme | None]) -> Format:
    return Format({values, "weight_scale"}, set(), mx.shape, mx.rows, mx.decode, activations)


_STATIC_INPUT = {"input_scale", "input_zero_point"}
_ONE_VALUE_EACH = Format(
    {"weight", "weight_scale"},
    {"weight_zero_point", *_STATIC_INPUT},
    compressed.shape,
    compressed.rows,
    compressed.decode,
    compressed.activations,
)

FORMATS: dict[str, Format] = {
    "nvfp4-pack-quantized": replace(
        _ONE_VALUE_EACH,
        required={"weight_packed", "weight_scale", "weight_global_scale"},
        optional={"input_global_scale"},
    ),
    "pack-quantized": Format(
        {"weight_packed", "weight_scale", "weight_shape"},
        {"weight_zero_point", "weight_g_idx", *_STATIC_INPUT},
        compressed.packed_shape,
        compressed.packed_rows,
        compressed.decode_packed,
        compressed.activations,
    ),
    "float-quantized": _ONE_VALUE_EACH,
    "int-quantized": _ONE_VALUE_EACH,
    "naive-quantized": _ONE_VALUE_EACH,
    "fp8": Format(
        {"weight", "weight_scale_inv"}, {"activation_scale"}, fp8.shape, fp8.rows, fp8.decode, fp8.activations
    ),
    "gptq": Format({"qweight", "qzeros", "scales"}, {"g_idx"}, gptq.shape, gptq.rows, gptq.decode, _none),
    "awq": Format({"qweight", "qzeros", "scales"}, set(), awq.shape, awq.rows, awq.decode, _none),
    "modelopt-nvfp4": Format(
        {"weight", "weight_scale", "weight_scale_2"},
        {"input_scale"},
        modelopt.shape,
        modelopt.rows,
        modelopt.decode,
        modelopt.activations,
    ),
    "modelopt-fp8": Format(
        {"weight", "weight_scale"},
        {"input_scale"},
        modelopt.fp8_shape,
        modelopt.fp8_rows,
        modelopt.decode_fp8,
        modelopt.fp8_activations,
    ),
    "mxfp4-pack-quantized": _microscaled("weight_packed", compressed.activations),
    "mxfp8-quantized": _microscaled("weight", compressed.activations),
    "modelopt-mxfp4": _microscaled("weight", mx.modelopt_activations),
    "modelopt-mxfp8": _microscaled("weight", mx.modelopt_activations),
    "mxfp4": Format(
        {"weight_packed", "weight_scale"}, set(), mx.experts_shape, mx.some_experts, mx.decode_experts, _none
    ),
    "gguf": Format({"weight"}, {"weight_scale_2"}, gguf.shape, gguf.rows, gguf.decode, _none),
    "plain": Format({"weight"}, set(), plain.shape, plain.rows, plain.decode, _none),
}
