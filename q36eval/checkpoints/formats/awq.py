"""AWQ serialization ("gemm", AutoAWQ's): `qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out].

value = scale · (q − zero), in the dtype of the scales, as AutoAWQ's `dequantize_gemm` computes it. Values have 4 bits;
the eight of an int32 word, from the lowest bits up, are the outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from typing import TYPE_CHECKING

from q36eval.checkpoints.formats.gptq import group_size
from q36eval.checkpoints.formats.parts import Parts, ceil_divide, need_dtypes, need_matrix, need_shape, unpack_words
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

IN_A_WORD = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of its eight outputs lies, in units of four bits."""
_DTYPES = {"qweight": ("int32",), "qzeros": ("int32",), "scales": ("float16", "bfloat16", "float32")}


def shape(parts: Parts, scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight, after checking that all parts fit it."""
    need_dtypes(parts, _DTYPES)
    columns, words = need_matrix("qweight", parts["qweight"])
    size = group_size(scheme, columns)
    if columns % size:
        raise CorruptCheckpointError("group-size-mismatch", f"{columns} columns do not divide into groups of {size}")
    need_shape("scales", parts["scales"], (columns // size, words * IN_A_WORD))
    need_shape("qzeros", parts["qzeros"], (columns // size, words))
    return words * IN_A_WORD, columns


def decode(parts: Parts, scheme: Scheme) -> "torch.Tensor":
    """The decoded weight [out, in]."""
    _, columns = shape(parts, scheme)
    size, scales = group_size(scheme, columns), parts["scales"].T
    zeros = outputs(parts["qzeros"]).repeat_interleave(size, 1)
    decoded: torch.Tensor = (outputs(parts["qweight"]) - zeros).to(scales.dtype) * scales.repeat_interleave(size, 1)
    return decoded


def outputs(packed: "torch.Tensor") -> "torch.Tensor":
    """Integers [8 m, n] from words [n, m], in the order of the outputs."""
    values = unpack_words(packed.T.contiguous(), 32 // IN_A_WORD)
    by_word = values.reshape(packed.shape[1], IN_A_WORD, packed.shape[0])
    ordered: torch.Tensor = by_word[:, list(PLACES)].flatten(0, 1)
    return ordered


def rows(parts: Parts, scheme: Scheme, start: int, stop: int) -> Parts:
    """The parts of outputs [start, stop), which lie along the second axis; both are multiples of eight."""
    words = slice(start // IN_A_WORD, ceil_divide(stop, IN_A_WORD))
    cut = {"qweight": parts["qweight"][:, words], "qzeros": parts["qzeros"][:, words]}
    return {**cut, "scales": parts["scales"][:, start:stop]}
