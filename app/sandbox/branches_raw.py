"""Tensors as bytes: read from and written to safetensors without interpreting them, the same bytes every time."""

import json
from dataclasses import dataclass
from pathlib import Path

from q36eval.checkpoints.header import DTYPE_BYTES, TensorEntry, read_header
from q36eval.checkpoints.reader import open_checkpoint

ALIGNMENT = 8


@dataclass(frozen=True)
class RawTensor:
    """One stored tensor: safetensors dtype name, shape, little-endian row-major data."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_raw(folder: Path) -> dict[str, RawTensor]:
    """All tensors of a checkpoint folder, by name."""
    return _read(open_checkpoint(folder).tensors)


def read_raw_file(file: Path) -> dict[str, RawTensor]:
    """All tensors of one safetensors file, by name."""
    return _read(read_header(file))


def _read(entries: dict[str, TensorEntry]) -> dict[str, RawTensor]:
    tensors: dict[str, RawTensor] = {}
    for name, entry in entries.items():
        with entry.file.open("rb") as stream:
            stream.seek(entry.begin)
            tensors[name] = RawTensor(entry.dtype, entry.shape, stream.read(entry.n_bytes))
    return tensors


def write_raw(file: Path, tensors: dict[str, RawTensor]) -> None:
    """Write one safetensors file: widest dtypes first (so that all data stay aligned), then by name."""
    names = sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    blob = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    blob += b" " * (-len(blob) % ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(blob).to_bytes(8, "little"))
        stream.write(blob)
        for name in names:
            stream.write(tensors[name].data)
