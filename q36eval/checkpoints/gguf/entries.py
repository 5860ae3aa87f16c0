"""What llama.cpp's converter does to tensors of this family, undone where they are read.

Source: `conversion/qwen.py` of llama.cpp (`Qwen3NextModel.modify_tensors`, `_LinearAttentionVReorderBase`):

- norms that multiply by 1 + w are stored as 1 + w, in float32: reading takes 1 off again. Both steps are exact but for
  |w| < 2^-16, which are off by up to 2^-24;
- `A_log` is stored as -exp(A_log), in float32: the logarithm gives it back within 2^-21, which leaves every BF16
  number of more than 2^-12 what it was;
- value heads of linear attention are stored tiled, those of one key head apart by the number of key heads, where
  Hugging Face has them side by side. That is undone bit for bit: rows here, and columns of numbers stored
  one by one; columns of blocks after decoding (`q36eval.checkpoints.formats.gguf`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.gguf.types import BY_NAME, FLOATS
from q36eval.checkpoints.header import TensorEntry, as_stored

if TYPE_CHECKING:
    import torch

Heads = tuple[int, int, int]
"""Key heads, value heads of each, and rows or columns of a value head."""
PLUS_ONE, MINUS_EXP = "1 + w", "-exp(w)"
MOVED_BY = {PLUS_ONE: 2.0**-24, MINUS_EXP: 2.0**-21}
F16_MOVED_BY = 2.0**-25
"""Half the gap between the smallest numbers of F16: a BF16 number of up to 65,504 moves by no more."""


@dataclass(frozen=True)
class GgufEntry(TensorEntry):
    """A tensor of a GGUF, or some rows of one; `shape` is that of the model, in numbers.

    `stored_as` is what the converter made of every number; `row_heads` and `column_heads` say how many heads lie
    tiled, after the first `rows_before` rows.
    """

    stored_as: str = ""
    row_heads: Heads | None = None
    rows_before: int = 0
    column_heads: Heads | None = None
    row_pairs: int | None = None
    """Heads whose rows lie in pairs, a row of the head's first half before one of its second."""

    @property
    def moved_by(self) -> float:
        """By how much converting may have moved a number, beside what the type does to it."""
        return MOVED_BY.get(self.stored_as, F16_MOVED_BY if self.dtype == "F16" else 0.0)

    def rows(self, start: int, stop: int) -> TensorEntry:
        """Where rows lie; of tiled heads no run of rows lies together."""
        if self.row_heads is not None or self.row_pairs is not None:
            raise ValueError(f"{self.name}: rows of tiled heads are not cut")
        return super().rows(start, stop)

    def tensor(self, data: bytearray) -> "torch.Tensor":
        """Numbers as the model has them, or bytes [rows, bytes of a row] of a quantized type, rows in its order."""
        import torch

        if self.dtype in FLOATS:
            values = as_stored(data, self.dtype, self.shape)
        else:
            kind = BY_NAME[self.dtype]
            row_bytes = (self.shape[-1] if self.shape else 1) // kind.values * kind.n_bytes
            values = torch.frombuffer(data, dtype=torch.uint8).reshape(*self.shape[:-1], row_bytes)
        if self.row_heads is not None:
            before, tiled = values[: self.rows_before], values[self.rows_before :]
            values = torch.cat((before, side_by_side(tiled, self.row_heads)))
        if self.row_pairs is not None:
            paired = values.reshape(self.row_pairs, len(values) // self.row_pairs // 2, 2, *values.shape[1:])
            values = paired.transpose(1, 2).reshape(values.shape)
        if self.column_heads is not None and self.dtype in FLOATS:
            values = columns_side_by_side(values, self.column_heads)
        if self.stored_as == PLUS_ONE:
            values = values.float() - 1
        elif self.stored_as == MINUS_EXP:
            values = torch.log(-values.double()).float()
        return values


def side_by_side(tiled: "torch.Tensor", heads: Heads) -> "torch.Tensor":
    """Rows [value head of its key head, key head, row] as [key head, value head, row]."""
    keys, each, size = heads
    return tiled.reshape(each, keys, size, *tiled.shape[1:]).transpose(0, 1).reshape(tiled.shape)


def columns_side_by_side(tiled: "torch.Tensor", heads: Heads) -> "torch.Tensor":
    """The same of the columns of a matrix."""
    keys, each, size = heads
    return tiled.reshape(-1, each, keys, size).transpose(1, 2).reshape(tiled.shape)
