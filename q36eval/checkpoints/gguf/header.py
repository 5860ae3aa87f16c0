"""The header of one GGUF file, read within limits: nothing is as large as the file says before that was checked.

Layout, all little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): `GGUF`, version, count of tensors
and of entries; the entries (key, type, value); of every tensor name, sizes (the fastest first), type and offset; from
the next multiple of `general.alignment` on the data, every tensor on a multiple of it.

The `gguf` package's reader maps the file into memory and believes its counts; here a file of a kilobyte that claims
2^60 entries is refused after a kilobyte.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.checkpoints.gguf.types import TYPES, BlockType
from q36eval.checkpoints.open_files import HeldFile
from q36eval.errors import CorruptCheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**26
"""Qwen3.6's takes 12 MB, most of it the vocabulary."""
MOST_ENTRIES = 2**16
MOST_TENSORS = 2**16
MOST_ELEMENTS = 2**22
"""Of an array: a vocabulary has a quarter of a million."""
MOST_DIMENSIONS = 4
MOST_BYTES_OF_A_NAME = 1024
MOST_ALIGNMENT = 2**20
_CHUNK = 2**20
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies: `shape` as torch has it (rows first), `[begin, end)` absolute byte offsets."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    begin: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """What one file says: its metadata by key, and its tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(file: HeldFile) -> GgufHeader:
    """Read and check a header.

    Raises:
        CorruptCheckpointError: no GGUF, of another version or byte order, truncated, with counts no model has, an entry
            or tensor twice, an unknown type, or tensors that lie outside the file, overlap or leave bytes between them.
    """
    cursor = _Cursor(file)
    _check_version(cursor)
    n_tensors, n_entries = cursor.number("Q"), cursor.number("Q")
    if n_entries > MOST_ENTRIES or n_tensors > MOST_TENSORS:
        raise cursor.fault(f"the header counts {n_tensors} tensors and {n_entries} entries, which no model has")
    metadata: dict[str, Any] = {}
    for _ in range(n_entries):
        key = cursor.name("an entry's name")
        value = cursor.value(cursor.number("I"), key)
        if key in metadata:
            raise cursor.fault(f"the header holds the entry {key!r} twice")
        metadata[key] = value
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fault(f"general.alignment is {alignment!r}, a power of two is needed")
    listed = [_listed(cursor) for _ in range(n_tensors)]
    data_begin = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in listed:
        if name in tensors:
            raise cursor.fault(f"the header holds the tensor {name!r} twice")
        if offset % alignment:
            raise cursor.fault(f"tensor {name!r} begins at {offset}, no multiple of {alignment}")
        n_bytes = math.prod(shape) // kind.values * kind.n_bytes
        tensors[name] = GgufTensor(name, shape, kind, data_begin + offset, data_begin + offset + n_bytes)
    _check_layout(cursor, tensors, data_begin, alignment)
    return GgufHeader(file.path, metadata, tensors)


class _Cursor:
    """Reads forward through the header, some of the file at a time."""

    def __init__(self, file: HeldFile) -> None:
        self.file, self.at = file, 0
        self._begin, self._chunk = 0, b""

    def fault(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError("gguf-malformed", f"{self.file.path}: {what}; download the file again.")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        if end > self.file.size:
            raise self.fault("truncated before the end of its header")
        if end > MAX_HEADER_BYTES:
            raise self.fault(f"the header takes more than {MAX_HEADER_BYTES} bytes, which no model's does")
        if end > self._begin + len(self._chunk):
            self._begin, self._chunk = self.at, self.file.read(self.at, max(size, _CHUNK))
            if len(self._chunk) < size:
                raise self.fault("truncated before the end of its header")
        taken = self._chunk[self.at - self._begin : end - self._begin]
        self.at = end
        return taken

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self, what: str, most: int = MAX_HEADER_BYTES) -> bytes:
        size = self.number("Q")
        if size > most:
            raise self.fault(f"{what} takes {size} bytes, which none does")
        return self.take(size)

    def name(self, what: str) -> str:
        try:
            return self.string(what, MOST_BYTES_OF_A_NAME).decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8") from error

    def value(self, kind: int, key: str) -> Any:
        """One value; text that is not UTF-8 has its bytes written out."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string(f"the entry {key!r}").decode(errors="backslashreplace")
        if kind != _ARRAY:
            raise self.fault(f"the entry {key!r} has the type {kind}, which is not known")
        inner, count = self.number("I"), self.number("Q")
        if count > MOST_ELEMENTS:
            raise self.fault(f"the entry {key!r} has {count} elements, which none has")
        if inner in _NUMBERS:
            code = f"<{count}{_NUMBERS[inner]}"
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        if inner != _STRING:
            raise self.fault(f"the entry {key!r} is an array of the type {inner}, which is not known")
        return [self.string(f"the entry {key!r}").decode(errors="backslashreplace") for _ in range(count)]


def _check_version(cursor: _Cursor) -> None:
    if cursor.file.size < 8 or cursor.take(4) != MAGIC:
        raise cursor.fault("no GGUF file: it does not begin with GGUF")
    version: int = cursor.number("I")
    if version & 0xFFFF == 0 and version:
        raise cursor.fault("a big-endian GGUF, which is not read; gguf-convert-endian of the gguf package turns it")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise cursor.fault(f"GGUF version {version} is not read; known: {known}")


def _listed(cursor: _Cursor) -> tuple[str, tuple[int, ...], BlockType, int]:
    name = cursor.name("a tensor's name")
    dimensions = cursor.number("I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise cursor.fault(f"tensor {name!r} has {dimensions} dimensions, 1 to {MOST_DIMENSIONS} are possible")
    sizes = [cursor.number("Q") for _ in range(dimensions)]
    number, offset = cursor.number("I"), cursor.number("Q")
    kind = TYPES.get(number)
    if kind is None:
        raise cursor.fault(f"tensor {name!r} has the type id {number}, which is not known")
    if 0 in sizes or math.prod(sizes) * kind.n_bytes >= 2**62:
        raise cursor.fault(f"tensor {name!r} has the sizes {sizes}, which no tensor has")
    if sizes[0] % kind.values:
        raise cursor.fault(f"tensor {name!r} has rows of {sizes[0]} values, and {kind.name} blocks of {kind.values}")
    return name, tuple(reversed(sizes)), kind, offset


def _check_layout(cursor: _Cursor, tensors: dict[str, GgufTensor], data_begin: int, alignment: int) -> None:
    """Every tensor lies within the file, after the one before it, with no more between them than aligning takes."""
    expected, last = data_begin, max(tensors.values(), key=lambda each: each.end, default=None)
    if last is not None and last.end > cursor.file.size:
        raise cursor.fault(f"truncated, tensor {last.name!r} ends at byte {last.end} of {cursor.file.size}")
    for tensor in sorted(tensors.values(), key=lambda each: each.begin):
        if tensor.begin < expected:
            raise cursor.fault(f"tensor {tensor.name!r} overlaps the tensor before it")
        if tensor.begin > expected:
            raise cursor.fault(f"tensor {tensor.name!r} follows bytes that belong to nothing")
        expected = -(-tensor.end // alignment) * alignment
    if cursor.file.size > max(expected, data_begin):
        raise cursor.fault(f"{cursor.file.size - expected} bytes after its last tensor belong to nothing")
