"""Conversion of one item with tensors to and from a safetensors file; and the journal of an unfinished capture."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.errors import UsageError
from q36eval.probes import Digest
from q36eval.references._files import cannot_write

if TYPE_CHECKING:
    import torch

METADATA = "q36eval"
"""The only metadata key: safetensors writes several keys in a nondeterministic order."""


@dataclass(frozen=True)
class Kept:
    """One item's digest and the hash of its request."""

    digest: Digest
    asked: str


def file_of(item_key: str) -> str:
    """The file of an item within its capture; item keys may contain any characters."""
    return f"items/{hashlib.sha256(item_key.encode()).hexdigest()[:40]}.safetensors"


def encoded(item_key: str, kept: Kept) -> bytes:
    """The bytes of one item's file; deterministic."""
    body = {"item": item_key, "asked": kept.asked, "values": kept.digest.values, "error": kept.digest.error}
    return tensor_bytes(kept.digest.tensors, json.dumps(body, ensure_ascii=False))


def tensor_bytes(tensors: "Mapping[str, torch.Tensor]", text: str = "") -> bytes:
    """A safetensors file of tensors and one text."""
    from safetensors.torch import save

    payload: bytes = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, {METADATA: text})
    return payload


def decoded(payload: bytes) -> tuple[str, Kept]:
    """Item key and digest of a shard's bytes.

    Raises:
        ValueError: the bytes are not a complete shard.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        body = _metadata(payload)
        digest = Digest(values=body["values"], tensors=load(payload), error=body["error"])
        return str(body["item"]), Kept(digest, str(body["asked"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a shard: {error}") from error


def _metadata(payload: bytes) -> dict[str, Any]:
    size = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + size])
    body: dict[str, Any] = json.loads(header["__metadata__"][METADATA])
    return body


def loaded(payload: bytes) -> "dict[str, torch.Tensor]":
    """The tensors of a safetensors file."""
    from safetensors.torch import load

    tensors: dict[str, torch.Tensor] = load(payload)
    return tensors


def tensor_sha256(tensor: "torch.Tensor") -> str:
    """Hash of a tensor's type, shape and bytes."""
    import torch

    plain = tensor.detach().contiguous().cpu()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    digest.update(plain.view(torch.uint8).reshape(-1).numpy().data)
    return digest.hexdigest()


SEAL = "line_sha256"
"""The key in a journal's line for the hash of the rest of the line."""


class Journal:
    """The finished items of an unfinished capture, one JSON object per line, each with its own hash.

    Everything from the first torn or changed line on is ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def mend(self) -> None:
        """Cut off a torn end, so that the next write begins a line. Only for the writer."""
        if self._path.exists():
            os.truncate(self._path, self.read()[1])

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line. It survives a kill of this process; a power failure may lose the last ones."""
        try:
            with self._path.open("ab") as stream:
                stream.write(json.dumps({**line, SEAL: _sealed(line)}, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def remove(self) -> None:
        """Call this once the capture's other files hold everything."""
        self._path.unlink(missing_ok=True)

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Its complete lines, up to the first incomplete one, and their size in bytes."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise UsageError("pack-unreadable", f"{self._path} cannot be read ({error.strerror}).") from error
        lines: list[dict[str, Any]] = []
        size = 0
        for line in content.splitlines(keepends=True):
            try:
                body = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n") or not isinstance(body, dict) or body.pop(SEAL, None) != _sealed(body):
                break
            lines.append(body)
            size += len(line)
        return lines, size


def _sealed(line: Mapping[str, Any]) -> str:
    # in the order of its keys, which both have: a digest's values are read back in that order
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()[:16]
