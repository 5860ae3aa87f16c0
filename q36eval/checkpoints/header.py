"""The header of one safetensors file, checked before a byte of tensor data is trusted.

Layout: https://github.com/huggingface/safetensors#format (8-byte little-endian header length, JSON header, data).
"""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.open_files import HeldFile, unique
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

TORCH_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}
DTYPE_BYTES = {name: max(int(re.sub(r"\D+", "", name.partition("_")[0]) or 8) // 8, 1) for name in TORCH_DTYPES}
MAX_HEADER_BYTES = 100_000_000
"""What the format allows."""
MAX_TENSORS = 500_000
"""Of one file: the whole of Qwen3.6-35B-A3B in NVFP4, expert by expert, has 123,974."""
MAX_DIMENSIONS = 64
"""What torch has room for."""
MAX_TENSOR_BYTES = 2**62


@dataclass(frozen=True)
class TensorEntry:
    """Where one stored tensor lies: `[begin, end)` are absolute byte offsets in `file`."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def moved_by(self) -> float:
        """By how much writing it in this file format may have moved a number, beside what its dtype does."""
        return 0.0

    @property
    def sources(self) -> "tuple[TensorEntry, ...]":
        """What is read for it: itself, or the tensors that it is made of."""
        return (self,)

    @property
    def n_bytes(self) -> int:
        """Stored size in bytes."""
        return self.end - self.begin

    def rows(self, start: int, stop: int) -> "TensorEntry":
        """Where rows [start, stop) lie; rows follow each other, so nothing else has to be read.

        Raises:
            CorruptCheckpointError: the tensor does not have them.
        """
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise CorruptCheckpointError(
                "tensor-shape", f"{self.file}: tensor {self.name!r} has no rows {start} to {stop}."
            )
        size = self.n_bytes // max(1, self.shape[0])
        begin = self.begin + start * size
        return replace(self, shape=(stop - start, *self.shape[1:]), begin=begin, end=begin + (stop - start) * size)

    def row(self, index: int) -> "TensorEntry":
        """Where one row lies, without its first axis: one expert of a fused tensor."""
        row = self.rows(index, index + 1)
        return replace(row, shape=row.shape[1:])

    def tensor(self, data: bytearray) -> "torch.Tensor":
        """The tensor that those bytes are, which it keeps for its own."""
        return as_stored(data, self.dtype, self.shape)


def as_stored(data: bytearray, dtype: str, shape: tuple[int, ...]) -> "torch.Tensor":
    """Bytes as a tensor of that type and shape, without a copy."""
    import torch

    kind: torch.dtype = getattr(torch, TORCH_DTYPES[dtype])
    return torch.frombuffer(data, dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)


def read_header(file: Path | HeldFile) -> dict[str, TensorEntry]:
    """The tensors of one file, by name.

    Raises:
        CorruptCheckpointError: truncated, malformed, out of bounds, overlapping, with bytes that belong to nothing, or
            with a shape that no tensor can have.
    """
    held = file if isinstance(file, HeldFile) else HeldFile(file)
    document, data_begin = _raw_header(held)
    entries: dict[str, TensorEntry] = {}
    for name, fields in document.items():
        if name == "__metadata__":
            if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
                raise _malformed(held, "__metadata__ does not map names to text; download the file again")
            continue
        fault = _fault(fields)
        if fault is not None:
            raise _malformed(held, f"tensor {name!r} {fault}")
        begin, end = (data_begin + offset for offset in fields["data_offsets"])
        entries[name] = TensorEntry(name, held.path, fields["dtype"], tuple(fields["shape"]), begin, end)
    _check_layout(held, entries, data_begin)
    return entries


def _malformed(held: HeldFile, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError("header-malformed", f"{held.path}: {what}.")


def _raw_header(held: HeldFile) -> tuple[dict[str, Any], int]:
    """The JSON header, and where the data begin."""
    file, size = held.path, held.size
    length = int.from_bytes(held.read(0, 8), "little")
    if size >= 8 and MAX_HEADER_BYTES < length <= size - 8:
        raise CorruptCheckpointError(
            "header-too-large",
            f"{file}: its header takes {length:,} bytes, the format allows {MAX_HEADER_BYTES:,}; download it again.",
        )
    if size < 8 or length > size - 8:
        raise CorruptCheckpointError(
            "file-truncated", f"{file}: truncated before the end of its header; download the file again."
        )
    try:
        # as UTF-8, which the format asks for: Python alone would also take UTF-16
        document = json.loads(held.read(8, length).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            "header-malformed", f"{file}: the header is not JSON ({error}); download the file again."
        ) from error
    if not isinstance(document, dict):
        raise _malformed(held, "the header is not a JSON object; download the file again")
    if len(document) > MAX_TENSORS:
        raise CorruptCheckpointError(
            "header-too-large",
            f"{file}: the header lists {len(document):,} tensors, more than the {MAX_TENSORS:,} that are read of one "
            f"file; download it again.",
        )
    return document, 8 + length


_FIELDS = {"dtype", "shape", "data_offsets"}


def _is_extent(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 (a generator takes twice the time, a quarter of a million times)
        if type(item) is not int or item < 0:
            return False
    return True


def _fault(fields: Any) -> str | None:
    """What is wrong with one tensor's entry by itself."""
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        return "has a malformed header entry; download the file again"
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"has the unknown dtype {dtype!r}"
    if not _is_extent(shape) or not _is_extent(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return "has a malformed shape or offsets"
    if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > MAX_TENSOR_BYTES * 2:
        return "has a malformed shape"
    size = offsets[1] - offsets[0]
    if size != math.prod(shape) * DTYPE_BYTES[dtype]:
        return f"takes {size} bytes, not what {dtype} {shape} needs"
    if not size and math.prod(max(each, 1) for each in shape) * DTYPE_BYTES[dtype] >= MAX_TENSOR_BYTES:
        return "has a shape that no tensor can have"  # an empty tensor may claim any size
    return None


def _check_layout(held: HeldFile, entries: dict[str, TensorEntry], data_begin: int) -> None:
    """Refuse tensors out of bounds or overlapping, and bytes that belong to none."""
    in_order = sorted(entries.values(), key=lambda entry: (entry.begin, entry.end, entry.name))
    beyond = next((entry for entry in in_order if entry.end > held.size), None)
    if beyond is not None:
        what = f"truncated, tensor {beyond.name!r} ends at byte {beyond.end} of {held.size}; download the file again"
        raise _malformed(held, what)
    expected = data_begin
    for entry in in_order:
        if entry.begin < expected:
            raise _malformed(held, f"tensor {entry.name!r} overlaps the tensor before it")
        if entry.begin > expected:
            raise _malformed(held, f"tensor {entry.name!r} follows bytes that belong to nothing")
        expected = entry.end
    if expected < held.size:
        raise _malformed(held, f"{held.size - expected} bytes after its last tensor belong to nothing")
