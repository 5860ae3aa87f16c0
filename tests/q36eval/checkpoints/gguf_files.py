"""GGUF files taken apart and put together again, byte for byte, so that a test can change one thing of one."""

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q36eval.checkpoints.gguf.types import TYPES
from q36eval.checkpoints.inspection import Inspection

GOLDEN = Path(__file__).parents[2] / "assets" / "ggufs"
MANIFEST: dict[str, dict[str, Any]] = json.loads((GOLDEN / "MANIFEST.json").read_text())
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
ALIGNMENT = 32


@dataclass
class RawTensor:
    """`sizes` as stored, the fastest first; `offset` None is where it belongs."""

    sizes: list[int]
    type: int
    data: bytes
    offset: int | None = None

    @property
    def type_name(self) -> str:
        return TYPES[self.type].name


@dataclass
class Gguf:
    """A whole file. `entries` are types and raw values; the rest overrides what is written otherwise."""

    entries: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[str, RawTensor] = field(default_factory=dict)
    version: int = 3
    magic: bytes = b"GGUF"
    n_entries: int | None = None
    n_tensors: int | None = None
    again: tuple[str, ...] = ()
    """Names of entries or tensors that are written twice."""

    def put(self, key: str, value: Any) -> None:
        """Replace an entry, by the type that it had where it was there."""
        kind = (
            self.entries[key][0] if key in self.entries else {str: 8, list: 9, bool: 7, int: 4, float: 6}[type(value)]
        )
        if isinstance(value, list):
            inner = self.entries[key][1][:4] if key in self.entries else struct.pack("<I", 8)
            code = NUMBERS.get(struct.unpack("<I", inner)[0])
            items = b"".join(text(one) if code is None else struct.pack(f"<{code}", one) for one in value)
            self.entries[key] = (9, inner + struct.pack("<Q", len(value)) + items)
        else:
            self.entries[key] = (kind, text(value) if kind == 8 else struct.pack(f"<{NUMBERS[kind]}", value))

    def write(self, file: Path, cut: int | None = None, more: bytes = b"") -> Path:
        """`cut` bytes of it, all without; `more` after its end."""
        header = self.magic + struct.pack("<I", self.version)
        names = [*self.tensors, *(name for name in self.again if name in self.tensors)]
        keys = [*self.entries, *(name for name in self.again if name in self.entries)]
        header += struct.pack("<Q", len(names) if self.n_tensors is None else self.n_tensors)
        header += struct.pack("<Q", len(keys) if self.n_entries is None else self.n_entries)
        for key in keys:
            kind, raw = self.entries[key]
            header += text(key) + struct.pack("<I", kind) + raw
        body = b""
        for name in names:
            tensor = self.tensors[name]
            offset = len(body) if tensor.offset is None else tensor.offset
            header += text(name) + struct.pack("<I", len(tensor.sizes))
            header += b"".join(struct.pack("<Q", size) for size in tensor.sizes)
            header += struct.pack("<IQ", tensor.type, offset)
            body += tensor.data + bytes(-len(tensor.data) % ALIGNMENT)
        whole = header + bytes(-len(header) % ALIGNMENT) + body + more
        file.write_bytes(whole if cut is None else whole[:cut])
        return file


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def take_apart(file: Path) -> Gguf:
    """A well-formed file."""
    data, at = file.read_bytes(), 24
    n_tensors, n_entries = struct.unpack("<QQ", data[8:24])

    def number(code: str) -> Any:
        nonlocal at
        size = struct.calcsize("<" + code)
        at += size
        return struct.unpack("<" + code, data[at - size : at])[0]

    def string() -> str:
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size : at].decode()

    def skip(kind: int) -> None:
        nonlocal at
        if kind == 8:
            string()
        elif kind == 9:
            inner, count = number("I"), number("Q")
            for _ in range(count):
                skip(inner)
        else:
            at += struct.calcsize("<" + NUMBERS[kind])

    parsed = Gguf(version=struct.unpack("<I", data[4:8])[0])
    for _ in range(n_entries):
        key, kind = string(), number("I")
        begin = at
        skip(kind)
        parsed.entries[key] = (kind, data[begin:at])
    listed = [(string(), [number("Q") for _ in range(number("I"))], number("I"), number("Q")) for _ in range(n_tensors)]
    begin = -(-at // ALIGNMENT) * ALIGNMENT
    for name, sizes, kind, offset in listed:
        size = math.prod(sizes) // TYPES[kind].values * TYPES[kind].n_bytes
        parsed.tensors[name] = RawTensor(sizes, kind, data[begin + offset : begin + offset + size])
    return parsed


def blocking(inspection: Inspection) -> set[str]:
    """The rules of what blocks."""
    return {finding.rule for finding in inspection.blocking}
