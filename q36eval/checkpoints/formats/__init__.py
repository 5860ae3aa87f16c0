"""One module per stored format: which parts it needs, how they decode, what it does to activations.

Every format decodes in the precision its own library uses and is rounded once, to the model's dtype, by the loader. A
format may import `parts`, what all of them need of stored parts, `q36eval.checkpoints.scheme`, and another format's
decoding that it shares; torch where it decodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats import awq, compressed, fp8, gguf, gptq, modelopt, mx, plain
from q36eval.checkpoints.formats.parts import ROWS_MULTIPLE, ActivationScheme
from q36eval.checkpoints.scheme import Scheme

if TYPE_CHECKING:
    import torch

__all__ = ["FORMATS", "ROWS_MULTIPLE", "ActivationScheme", "Format"]

Parts = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Format:
    """A stored format: part names, decoder, and the activation quantization it stands for.

    `shape` checks that all parts fit and gives the decoded weight's shape; `rows` takes the parts of some rows of it
    (from and to multiples of `ROWS_MULTIPLE`, or any experts that are stored together), which decode by themselves to
    those rows.
    """

    required: frozenset[str]
    optional: frozenset[str]
    shape: Callable[[Parts, Scheme], tuple[int, ...]]
    rows: Callable[[Parts, Scheme, int, int], Parts]
    decode: Callable[[Parts, Scheme], "torch.Tensor"]
    activations: Callable[[Parts, Scheme], ActivationScheme | None]


def _none(parts: Parts, scheme: Scheme) -> ActivationScheme | None:
    return None


def _compressed(required: set[str], optional: set[str]) -> Format:
    return Format(
        frozenset(required),
        frozenset(optional),
        compressed.shape,
        compressed.rows,
        compressed.decode,
        compressed.activations,
    )


def _microscaled(values: str, activations: Callable[[Parts, Scheme], ActivationScheme | None]) -> Format:
    return Format(frozenset({values, "weight_scale"}), frozenset(), mx.shape, mx.rows, mx.decode, activations)


_STATIC_INPUT = {"input_scale", "input_zero_point"}
_ONE_VALUE_EACH = _compressed({"weight", "weight_scale"}, {"weight_zero_point", *_STATIC_INPUT})

FORMATS: dict[str, Format] = {
    "nvfp4-pack-quantized": _compressed(
        {"weight_packed", "weight_scale", "weight_global_scale"}, {"input_global_scale"}
    ),
    "pack-quantized": Format(
        frozenset({"weight_packed", "weight_scale", "weight_shape"}),
        frozenset({"weight_zero_point", "weight_g_idx", *_STATIC_INPUT}),
        compressed.packed_shape,
        compressed.packed_rows,
        compressed.decode_packed,
        compressed.activations,
    ),
    "float-quantized": _ONE_VALUE_EACH,
    "int-quantized": _ONE_VALUE_EACH,
    "naive-quantized": _ONE_VALUE_EACH,
    "fp8": Format(
        frozenset({"weight", "weight_scale_inv"}),
        frozenset({"activation_scale"}),
        fp8.shape,
        fp8.rows,
        fp8.decode,
        fp8.activations,
    ),
    "gptq": Format(
        frozenset({"qweight", "qzeros", "scales"}), frozenset({"g_idx"}), gptq.shape, gptq.rows, gptq.decode, _none
    ),
    "awq": Format(frozenset({"qweight", "qzeros", "scales"}), frozenset(), awq.shape, awq.rows, awq.decode, _none),
    "modelopt-nvfp4": Format(
        frozenset({"weight", "weight_scale", "weight_scale_2"}),
        frozenset({"input_scale"}),
        modelopt.shape,
        modelopt.rows,
        modelopt.decode,
        modelopt.activations,
    ),
    "modelopt-fp8": Format(
        frozenset({"weight", "weight_scale"}),
        frozenset({"input_scale"}),
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
        frozenset({"weight_packed", "weight_scale"}),
        frozenset(),
        mx.experts_shape,
        mx.some_experts,
        mx.decode_experts,
        _none,
    ),
    "gguf": Format(frozenset({"weight"}), frozenset({"weight_scale_2"}), gguf.shape, gguf.rows, gguf.decode, _none),
    "plain": Format(frozenset({"weight"}), frozenset(), plain.shape, plain.rows, plain.decode, _none),
}
