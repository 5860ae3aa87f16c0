"""The header of one safetensors file, checked before a byte of tensor data is trusted.

Layout: https://github.com/huggingface/safetensors#format (8-byte little-endian header length, JSON header, data).
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.held import HeldFile
from q36eval.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import torch

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


@dataclass(frozen=True)
class Header:
    """The tensors of a file whose entries are sound, and everything that is wrong with it, one sentence each.

    `impossible` tells, by name, of tensors whose bytes are where they should be but whose shape no tensor can have.
    """

    entries: dict[str, TensorEntry]
    faults: tuple[str, ...]
    impossible: dict[str, str] = field(default_factory=dict)


def read_header(file: Path | HeldFile) -> dict[str, TensorEntry]:
    """The tensors of one file, by name.

    Raises:
        CorruptCheckpointError: truncated, malformed, out of bounds, overlapping, or with bytes that belong to nothing.
    """
    header = examine_header(file)
    faults = [*header.faults, *header.impossible.values()]
    if faults:
        raise CorruptCheckpointError("header-malformed", faults[0])
    return header.entries


def examine_header(file: Path | HeldFile) -> Header:
    """The same with every fault told, not only the first one.

    Raises:
        CorruptCheckpointError: there is no header to speak of.
    """
    faults: list[str] = []
    held = file if isinstance(file, HeldFile) else HeldFile(file)
    file = held.path
    document, data_begin, size = _raw_header(held, faults)
    entries: dict[str, TensorEntry] = {}
    impossible: dict[str, str] = {}
    extents: list[tuple[int, int, str]] = []
    for name, fields in document.items():
        if name == "__metadata__":
            if not _is_metadata(fields):
                faults.append(f"{file}: __metadata__ does not map names to text; download the file again.")
            continue
        offsets = _offsets(fields)
        fault = _fault(fields, offsets)
        if fault is not None:
            faults.append(f"{file}: tensor {name!r} {fault}.")
        if offsets is None:
            continue
        begin, end = data_begin + offsets[0], data_begin + offsets[1]
        extents.append((begin, end, name))
        counted = 0 < end - begin < MAX_TENSOR_BYTES  # where there is no fault, the shape takes what the offsets say
        if fault is None and not (counted or _can_be(fields["shape"], DTYPE_BYTES[fields["dtype"]])):
            impossible[name] = f"{file}: tensor {name!r} has a shape that no tensor can have."
        elif fault is None:
            entries[name] = TensorEntry(name, file, fields["dtype"], tuple(fields["shape"]), begin, end)
    return Header(entries, (*faults, *_layout_faults(file, sorted(extents), data_begin, size)), impossible)


def _raw_header(held: HeldFile, faults: list[str]) -> tuple[dict[str, Any], int, int]:
    """The JSON header, where the data begin, and the file's size; names that come twice are added to `faults`."""
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
    blob = held.read(8, length)

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) == len(pairs):
            return document
        document = {}
        for key, value in pairs:
            if key in document:
                faults.append(f"{file}: the header holds {key!r} twice; download the file again.")
            document.setdefault(key, value)
        return document

    try:
        # as UTF-8, which the format asks for: Python alone would also take UTF-16
        document = json.loads(blob.decode("utf-8"), object_pairs_hook=build)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            "header-malformed", f"{file}: the header is not JSON ({error}); download the file again."
        ) from error
    if not isinstance(document, dict):
        raise CorruptCheckpointError(
            "header-malformed", f"{file}: the header is not a JSON object; download the file again."
        )
    if len(document) > MAX_TENSORS:
        raise CorruptCheckpointError(
            "header-too-large",
            f"{file}: the header lists {len(document):,} tensors, more than the {MAX_TENSORS:,} that are read of one "
            f"file; download it again.",
        )
    return document, 8 + length, size


_FIELDS = {"dtype", "shape", "data_offsets"}


def _is_metadata(fields: Any) -> bool:
    return isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values())


def _is_extent(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 (a generator takes twice the time, a quarter of a million times)
        if type(item) is not int or item < 0:
            return False
    return True


def _offsets(fields: Any) -> tuple[int, int] | None:
    """Where a tensor says it lies, even if the rest of its entry is wrong; None when it does not say so."""
    offsets: Any = fields.get("data_offsets") if isinstance(fields, dict) else None
    if not _is_extent(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return None
    return offsets[0], offsets[1]


def _can_be(shape: list[int], item_bytes: int) -> bool:
    """Whether the sizes can be counted with; an empty tensor may claim any."""
    return math.prod(max(size, 1) for size in shape) * item_bytes < MAX_TENSOR_BYTES


def _fault(fields: Any, offsets: tuple[int, int] | None) -> str | None:
    """What is wrong with one tensor's entry by itself, which says that it lies at these offsets."""
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        return "has a malformed header entry; download the file again"
    dtype, shape = fields["dtype"], fields["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"has the unknown dtype {dtype!r}"
    if not _is_extent(shape) or offsets is None:
        return "has a malformed shape or offsets"
    if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > MAX_TENSOR_BYTES * 2:
        return "has a malformed shape"
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        return f"takes {offsets[1] - offsets[0]} bytes, not what {dtype} {shape} needs"
    return None


def _layout_faults(file: Path, extents: list[tuple[int, int, str]], data_begin: int, size: int) -> Iterator[str]:
    """Tensors out of bounds, overlapping or with bytes between them, in the order of their bytes."""
    beyond = [(end, name) for _, end, name in extents if end > size]
    if beyond:
        end, name = beyond[0]
        more = f" and {len(beyond) - 1} more lie beyond it" if len(beyond) > 1 else ""
        yield f"{file}: truncated, tensor {name!r} ends at byte {end} of {size}{more}; download the file again."
    expected = data_begin
    for begin, end, name in extents:
        if begin < expected:
            yield f"{file}: tensor {name!r} overlaps the tensor before it."
        elif begin > expected:
            yield f"{file}: tensor {name!r} follows bytes that belong to nothing."
        expected = max(expected, end)
    if expected < size:
        yield f"{file}: {size - expected} bytes after its last tensor belong to nothing."
