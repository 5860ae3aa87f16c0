"""What was captured from a reference, kept on disk and reused: keyed by the deployment's identity and the suite's hash.

A capture is a folder of numbered parts, each written whole or not at all, so a killed capture loses at most its last
unwritten part and resumes at the next item. One process at a time writes to it, under its lock; reading takes none.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.errors import UsageError
from q36eval.probes import Digest
from q36eval.records import DeploymentIdentity, ProbeName

if TYPE_CHECKING:
    import torch

ITEMS_PER_PART = 64


def capture_key(identity: DeploymentIdentity, probe: ProbeName, suite_sha256: str) -> str:
    """Content hash that names a capture."""
    text = json.dumps([identity.model_dump(mode="json"), probe, suite_sha256], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Capture(Mapping[str, Digest]):
    """The digests of one probe's items under one reference deployment, as they were on disk when it was opened.

    Whoever adds to it holds `lock_file` and opened it under that lock: parts are numbered on from those it found.
    """

    def __init__(self, root: Path, identity: DeploymentIdentity, probe: ProbeName, suite_sha256: str) -> None:
        self.key = capture_key(identity, probe, suite_sha256)
        self.folder = root / f"{probe}-{self.key[:16]}"
        # beside the folder, so that deleting a damaged capture leaves the lock with its holder
        self.lock_file = self.folder.with_name(self.folder.name + ".lock")
        self._header = {"identity": identity.model_dump(mode="json"), "probe": probe, "suite_sha256": suite_sha256}
        self._pending: dict[str, Digest] = {}
        self._digests: dict[str, Digest] = {}
        self._shared: dict[str, torch.Tensor] = {}
        self._parts = 0
        self._open()

    def _open(self) -> None:
        path = self.folder / "capture.json"
        if path.exists():
            stored, header = _read_json(path), json.loads(json.dumps(self._header))
            different = [name for name in header if stored.get(name) != header[name]]
            if different:
                raise UsageError(f"The capture {self.folder} was made with another {', '.join(different)}; delete it.")
        if (self.folder / "shared.json").exists():
            self._shared = _read_shared(self.folder)
        for part in sorted(self.folder.glob("part-*.json")):
            self._digests.update(_read_part(part))
            self._parts = int(part.stem.removeprefix("part-")) + 1

    def __getitem__(self, item_key: str) -> Digest:
        found = self._pending.get(item_key) or self._digests.get(item_key)
        if found is None:
            raise KeyError(item_key)
        return replace(found, tensors={**self._shared, **found.tensors}) if self._shared else found

    def __iter__(self) -> Iterator[str]:
        yield from self._digests
        yield from self._pending

    def __len__(self) -> int:
        return len(self._digests) + len(self._pending)

    def add(self, item_key: str, digest: Digest) -> None:
        """Keep one digest; written to disk with its part."""
        self._pending[item_key] = digest
        if len(self._pending) >= ITEMS_PER_PART:
            self.flush()

    @property
    def has_shared(self) -> bool:
        """Whether the tensors that all digests share were captured."""
        return bool(self._shared)

    def share(self, tensors: "dict[str, torch.Tensor]") -> None:
        """Keep tensors that every digest carries; written at once."""
        from safetensors.torch import save

        self._write_header()
        payload = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
        _write_whole(self.folder / "shared.safetensors", payload)
        digest = {"tensors_sha256": hashlib.sha256(payload).hexdigest()}
        _write_whole(self.folder / "shared.json", json.dumps(digest).encode())
        self._shared = tensors

    def flush(self) -> None:
        """Write what is pending as one part: tensors first, so that a part that is listed is complete."""
        if not self._pending:
            return
        from safetensors.torch import save

        tensors = {
            f"{item_key}/{name}": tensor.contiguous()
            for item_key, digest in self._pending.items()
            for name, tensor in digest.tensors.items()
        }
        self._write_header()
        stem = self.folder / f"part-{self._parts:05d}"
        payload = save(tensors)
        _write_whole(stem.with_suffix(".safetensors"), payload)
        body = {
            "tensors_sha256": hashlib.sha256(payload).hexdigest(),
            "digests": {item_key: [digest.values, digest.error] for item_key, digest in self._pending.items()},
        }
        _write_whole(stem.with_suffix(".json"), json.dumps(body, ensure_ascii=False).encode())
        self._digests |= self._pending
        self._pending = {}
        self._parts += 1

    def _write_header(self) -> None:
        """Before anything else is written, and not on opening: a reader writes nothing."""
        path = self.folder / "capture.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(path, json.dumps(self._header, sort_keys=True, indent=1).encode())


def _read_part(path: Path) -> dict[str, Digest]:
    from safetensors.torch import load

    body = _read_json(path)
    try:
        payload = path.with_suffix(".safetensors").read_bytes()
    except OSError as error:
        raise UsageError(f"The reference capture {path.parent} is damaged; delete that folder.") from error
    if hashlib.sha256(payload).hexdigest() != body["tensors_sha256"]:
        raise UsageError(f"The reference capture {path.with_suffix('.safetensors')} is damaged; delete its folder.")
    tensors: dict[str, dict[str, Any]] = {}
    for name, tensor in load(payload).items():
        item_key, _, tensor_name = name.rpartition("/")
        tensors.setdefault(item_key, {})[tensor_name] = tensor
    return {
        item_key: Digest(values=values, tensors=tensors.get(item_key, {}), error=error)
        for item_key, (values, error) in body["digests"].items()
    }


def _read_shared(folder: Path) -> "dict[str, torch.Tensor]":
    from safetensors.torch import load

    expected = _read_json(folder / "shared.json").get("tensors_sha256")
    path = folder / "shared.safetensors"
    payload = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(payload).hexdigest() != expected:
        raise UsageError(f"The reference capture {folder} is damaged; delete that folder.")
    tensors: dict[str, torch.Tensor] = load(payload)
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"The reference capture {path.parent} is damaged; delete that folder.") from error
    return body


def _write_whole(path: Path, payload: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(payload)
    temporary.replace(path)
