"""The header of one safetensors file, checked before a byte of tensor data is trusted.

Layout: https://github.com/huggingface/safetensors#format (8-byte little-endian header length, JSON header, data).
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from q36eval.errors import CorruptCheckpointError

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
MAX_HEADER_BYTES = 100_000_000


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
    def n_bytes(self) -> int:
        """Stored size in bytes."""
        return self.end - self.begin

    def rows(self, start: int, stop: int) -> "TensorEntry":
        """Where rows [start, stop) lie; rows follow each other, so nothing else has to be read.

        Raises:
            CorruptCheckpointError: the tensor does not have them.
        """
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise CorruptCheckpointError(f"{self.file}: tensor {self.name!r} has no rows {start} to {stop}.")
        size = self.n_bytes // max(1, self.shape[0])
        begin = self.begin + start * size
        return replace(self, shape=(stop - start, *self.shape[1:]), begin=begin, end=begin + (stop - start) * size)

    def row(self, index: int) -> "TensorEntry":
        """Where one row lies, without its first axis: one expert of a fused tensor."""
        found = self.rows(index, index + 1)
        return replace(found, shape=found.shape[1:])


def _no_duplicates(file: Path) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in pairs:
            if key in document:
                raise CorruptCheckpointError(f"{file}: the header holds {key!r} twice; download the file again.")
            document[key] = value
        return document

    return build


def _raw_header(file: Path) -> tuple[dict[str, Any], int, int]:
    """The JSON header, where the data begin, and the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CorruptCheckpointError(f"{file}: truncated before the end of its header; download the file again.")
        blob = stream.read(length)
    try:
        document = json.loads(blob, object_pairs_hook=_no_duplicates(file))
    except ValueError as error:
        raise CorruptCheckpointError(f"{file}: the header is not JSON ({error}); download the file again.") from error
    if not isinstance(document, dict):
        raise CorruptCheckpointError(f"{file}: the header is not a JSON object; download the file again.")
    return document, 8 + length, size


def _is_extent(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _entry(file: Path, name: str, fields: Any, data_begin: int) -> TensorEntry:
    where = f"{file}: tensor {name!r}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CorruptCheckpointError(f"{where} has a malformed header entry; download the file again.")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if dtype not in DTYPE_BYTES:
        raise CorruptCheckpointError(f"{where} has the unknown dtype {dtype!r}.")
    if not (_is_extent(shape) and _is_extent(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        raise CorruptCheckpointError(f"{where} has a malformed shape or offsets.")
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise CorruptCheckpointError(f"{where} takes {offsets[1] - offsets[0]} bytes, not what {dtype} {shape} needs.")
    return TensorEntry(name, file, dtype, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors of one file, by name.

    Raises:
        CorruptCheckpointError: truncated, malformed, out of bounds, overlapping, or with bytes that belong to nothing.
    """
    document, data_begin, size = _raw_header(file)
    entries = {
        name: _entry(file, name, fields, data_begin) for name, fields in document.items() if name != "__metadata__"
    }
    expected = data_begin
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.end > size:
            raise CorruptCheckpointError(
                f"{file}: truncated, tensor {entry.name!r} ends at byte {entry.end} of {size}; download the file again."
            )
        if entry.begin != expected:
            fault = (
                "overlaps the tensor before it" if entry.begin < expected else "follows bytes that belong to nothing"
            )
            raise CorruptCheckpointError(f"{file}: tensor {entry.name!r} {fault}.")
        expected = entry.end
    if expected != size:
        raise CorruptCheckpointError(f"{file}: {size - expected} bytes after its last tensor belong to nothing.")
    return entries
