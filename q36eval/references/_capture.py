"""One probe's digests under one reference deployment: a folder that grows item by item and is sealed by its manifest.

One process at a time writes to it, under its lock; reading takes none.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.errors import UsageError
from q36eval.files import canonical_json, json_sha256
from q36eval.probes import Digest, Kind
from q36eval.records import DeploymentIdentity, ProbeName
from q36eval.references._files import remove_temporaries, sha256_of, write_whole
from q36eval.references._manifest import (
    HEADER_FILE,
    MANIFEST_FILE,
    FileEntry,
    Header,
    Manifest,
    Shard,
    load_header,
    load_manifest,
    to_json,
)
from q36eval.references._shards import (
    Journal,
    Kept,
    decoded,
    encoded,
    file_of,
    loaded,
    tensor_bytes,
    tensor_sha256,
)

if TYPE_CHECKING:
    import torch

ANSWERS_FILE = "answers.jsonl"
SHARED_FILE = "shared.safetensors"
WITHHELD_FILE = "shared.json"
HEAD = "head"
"""The shared tensor [V, H] that gives a pack's width and vocabulary."""


def pack_folder(root: Path, identity: DeploymentIdentity) -> Path:
    """The path of that reference's pack below `root`."""
    return root / json_sha256(identity.model_dump(mode="json"))[:16]


def capture_key(identity: DeploymentIdentity, probe: ProbeName, suite_sha256: str) -> str:
    """Content hash that names a capture."""
    return json_sha256([identity.model_dump(mode="json"), probe, suite_sha256])


class Capture(Mapping[str, Digest]):
    """The digests of one probe's items under one reference deployment, as on disk when opened.

    Tensors are read and checked against their hash when an item is requested. A writer holds `lock_file` and opens the
    capture under that lock. `restore` supplies shared tensors stored only as a hash; `suite` holds the inputs of
    `suite_sha256`.

    Raises:
        UsageError: the folder belongs to another reference, suite or kind (naming the field), or is damaged.
    """

    def __init__(
        self,
        root: Path,
        identity: DeploymentIdentity,
        probe: ProbeName,
        suite_sha256: str,
        kind: Kind = "answers",
        restore: "Callable[[], Mapping[str, torch.Tensor]] | None" = None,
        suite: Mapping[str, str] | None = None,
    ) -> None:
        self.key = capture_key(identity, probe, suite_sha256)
        self.folder = root / f"{probe}-{self.key[:16]}"
        # outside the folder, so that deleting a damaged capture leaves the lock with its holder
        self.lock_file = self.folder.with_name(self.folder.name + ".lock")
        self.header = Header(
            kind=kind,
            probe=probe,
            suite_sha256=suite_sha256,
            suite=dict(suite or {}),
            identity=identity,
        )
        self.manifest: Manifest | None = None
        self._restore = restore
        self._journal = Journal(self.folder / "journal.jsonl")
        self._answers: dict[str, Kept] = {}
        self._shards: dict[str, Shard] = {}
        self._tokens: dict[str, int] = {}
        self._entries: dict[str, FileEntry] = {}
        self._shared: dict[str, torch.Tensor] | None = None
        self._writing = False
        self._open()

    # -- reading

    def _open(self) -> None:
        if not (self.folder / HEADER_FILE).exists():
            return
        different = self.header.differing_fields(load_header(self.folder))
        if different:
            raise UsageError(
                "capture-identity",
                f"The capture {self.folder} was made with another {', '.join(different)}; delete it.",
            )
        self.manifest = load_manifest(self.folder)
        if self.manifest is None:
            path = self.folder / ANSWERS_FILE
            if path.exists():
                self._read_answers(path.read_bytes())
            for line in self._journal.read()[0]:  # items written but not yet listed are requested again
                self._recall(line)
            return
        self._entries = dict(self.manifest.files)
        self._shards = dict(self.manifest.shards)
        if ANSWERS_FILE in self._entries:
            self._read_answers(self._checked(ANSWERS_FILE))

    def _recall(self, line: Mapping[str, Any]) -> None:
        if "file" not in line:
            self._answers[line["item"]] = _answer_of(line)
            return
        path, entry = self.folder / line["file"], FileEntry(sha256=line["sha256"], bytes=line["bytes"])
        if path.exists() and path.stat().st_size == entry.bytes:
            self._entries[line["file"]] = entry
            if "item" in line:
                self._shards[line["item"]] = Shard(file=line["file"], asked=line["asked"])
                self._tokens |= {line["item"]: line["tokens"]} if "tokens" in line else {}

    def _read_answers(self, payload: bytes) -> None:
        for text in payload.decode().split("\n"):
            if text:
                line = json.loads(text)
                self._answers[line["item"]] = _answer_of(line)

    def _checked(self, name: str) -> bytes:
        """A file's bytes, verified against their hash."""
        path = self.folder / name
        try:
            payload = path.read_bytes()
        except OSError as error:
            raise UsageError("file-unreadable", f"{path} cannot be read ({error.strerror}); {self._remedy}") from error
        entry = self._entries.get(name)
        if entry is not None and sha256_of(payload) != entry.sha256:
            raise UsageError(
                "pack-damaged", f"{path} is damaged: its contents are not those that were captured; {self._remedy}"
            )
        return payload

    @property
    def _remedy(self) -> str:
        return f"copy the pack again, or delete {self.folder} and capture it again."

    def __getitem__(self, item_key: str) -> Digest:
        shared = self.shared if self.has_shared else {}
        if item_key in self._answers:
            digest = self._answers[item_key].digest
        else:
            shard = self._shards[item_key]
            try:
                stored_key, kept = decoded(self._checked(shard.file))
            except ValueError as error:
                raise UsageError(
                    "pack-damaged", f"{self.folder / shard.file} is damaged ({error}); {self._remedy}"
                ) from error
            if stored_key != item_key:
                raise UsageError("pack-damaged", f"{self.folder / shard.file} holds another item; {self._remedy}")
            digest = kept.digest
        return replace(digest, tensors={**shared, **digest.tensors}) if shared else digest

    def __contains__(self, item_key: object) -> bool:
        return item_key in self._answers or item_key in self._shards

    def __iter__(self) -> Iterator[str]:
        yield from self._answers
        yield from self._shards

    def __len__(self) -> int:
        return len(self._answers) + len(self._shards)

    def asked(self, item_key: str) -> str:
        """The hash of an item's request."""
        return self._answers[item_key].asked if item_key in self._answers else self._shards[item_key].asked

    def content_sha256(self, item_keys: Collection[str]) -> str:
        """Hash of the stored data of those items, independent of the time of capture; missing items count as missing.

        Two captures of one model are the same evidence only if these hashes agree: a GPU is not deterministic.
        """
        hashed = hashlib.sha256()
        for key in sorted(item_keys):
            if key in self._answers:
                held: Any = _answer_line(key, self._answers[key])
            else:
                held = self._entries[self._shards[key].file].sha256 if key in self._shards else None
            hashed.update(canonical_json([key, held]).encode())
        for name in (SHARED_FILE, WITHHELD_FILE):
            if name in self._entries:
                hashed.update(self._entries[name].sha256.encode())
        return hashed.hexdigest()

    @property
    def has_shared(self) -> bool:
        """Whether the tensors shared by all digests were captured, as data or as their hash."""
        return self._shared is not None or any((self.folder / name).exists() for name in (SHARED_FILE, WITHHELD_FILE))

    @property
    def shared(self) -> "dict[str, torch.Tensor]":
        """The tensors shared by all digests.

        Raises:
            UsageError: only their hash is stored, and the reference's folder does not have these tensors.
        """
        if self._shared is None:
            whole = (self.folder / SHARED_FILE).exists()
            self._shared = loaded(self._checked(SHARED_FILE)) if whole else self._restored()
        return self._shared

    def _restored(self) -> "dict[str, torch.Tensor]":
        return self._check_restorable(json.loads(self._checked(WITHHELD_FILE)))

    def _check_restorable(self, described: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
        """The tensors whose hash alone is stored, from the reference's folder."""
        if self._restore is None:
            raise UsageError(
                "pack-text-withheld",
                f"The capture {self.folder} keeps only the hash of the reference's {', '.join(described)}; "
                f"name the reference's folder with --reference.",
            )
        restored = dict(self._restore())
        for name, body in described.items():
            if name not in restored or tensor_sha256(restored[name]) != body["sha256"]:
                raise UsageError(
                    "reference-file-differs",
                    f"The {name} in the reference's folder is not the one that {self.folder} was made with.",
                )
        return {name: restored[name] for name in described}

    # -- writing, under the lock

    def add(self, item_key: str, digest: Digest, asked: str = "") -> None:
        """Store one digest immediately; `asked` is a hash of the request.

        Raises:
            UsageError: the folder is not writable.
        """
        self._begin()
        kept = Kept(digest, asked)
        if not digest.tensors:
            self._answers[item_key] = kept
            self._journal.append(_answer_line(item_key, kept))
            return
        name, tokens = file_of(item_key), _tokens(digest)
        entry = self._write(name, encoded(item_key, kept))
        self._shards[item_key], self._tokens[item_key] = Shard(file=name, asked=asked), tokens
        self._journal.append({"item": item_key, "file": name, "asked": asked, "tokens": tokens, **entry.model_dump()})

    def share(self, tensors: "dict[str, torch.Tensor]", keep: bool = True) -> None:
        """Store tensors shared by every digest, or with `keep` false only their hash; written immediately."""
        self._begin()
        if keep:
            name, payload = SHARED_FILE, tensor_bytes(tensors)
        else:
            described = {n: {"sha256": tensor_sha256(t), "shape": list(t.shape)} for n, t in tensors.items()}
            self._check_restorable(described)
            name, payload = WITHHELD_FILE, canonical_json(described).encode()
        entry = self._write(name, payload)
        self._journal.append({"file": name, **entry.model_dump()})
        self._shared = tensors

    def finish(self, wanted: Collection[str]) -> None:
        """Seal the capture if it holds every item of `wanted`; a sealed one stays unchanged."""
        if self.manifest is not None or not wanted or not all(key in self for key in wanted):
            return
        self._begin()
        if self._answers:
            lines = [_answer_line(key, self._answers[key]) for key in sorted(self._answers)]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            self._write(ANSWERS_FILE, text.encode())
        for name in (HEADER_FILE, SHARED_FILE, WITHHELD_FILE):
            if name not in self._entries and (self.folder / name).exists():
                payload = (self.folder / name).read_bytes()
                self._entries[name] = FileEntry(sha256=sha256_of(payload), bytes=len(payload))
        manifest = self._summed_up()
        write_whole(self.folder / MANIFEST_FILE, to_json(manifest))  # a capture with a manifest is complete
        self._journal.remove()
        self.manifest, self._writing = manifest, False

    def _summed_up(self) -> Manifest:
        withheld = self.folder / WITHHELD_FILE
        described = json.loads(withheld.read_bytes()) if withheld.exists() else {}
        shape = described[HEAD]["shape"] if HEAD in described else None
        if shape is None and self.has_shared and HEAD in self.shared:
            shape = list(self.shared[HEAD].shape)
        return Manifest(
            **dict(self.header),
            items=len(self),
            tokens=sum(self._tokens[key] if key in self._tokens else _tokens(self[key]) for key in self._shards),
            hidden_size=None if shape is None else shape[1],
            vocabulary=None if shape is None else shape[0],
            files=dict(sorted(self._entries.items())),
            shards=dict(sorted(self._shards.items())),
            withheld={name: body["sha256"] for name, body in described.items()},
        ).sealed()

    def _begin(self) -> None:
        """Before the first write, not on opening: a reader writes nothing."""
        if self._writing:
            return
        if not (self.folder / HEADER_FILE).exists():
            write_whole(self.folder / HEADER_FILE, to_json(self.header))
        remove_temporaries(self.folder)
        self._journal.mend()
        if self.manifest is not None:  # adding to a finished capture: its journal must hold everything again
            self._journal.remove()
            items = {shard.file: {"item": key, "asked": shard.asked} for key, shard in self._shards.items()}
            for name, entry in self._entries.items():
                self._journal.append({"file": name, **items.get(name, {}), **entry.model_dump()})
            (self.folder / MANIFEST_FILE).unlink()
            self.manifest = None
        self._writing = True

    def _write(self, name: str, payload: bytes) -> FileEntry:
        write_whole(self.folder / name, payload)
        entry = self._entries[name] = FileEntry(sha256=sha256_of(payload), bytes=len(payload))
        return entry


def _tokens(digest: Digest) -> int:
    return int(digest.values.get("tokens", 0))


def _answer_line(item_key: str, kept: Kept) -> dict[str, Any]:
    return {"item": item_key, "asked": kept.asked, "values": kept.digest.values, "error": kept.digest.error}


def _answer_of(line: Mapping[str, Any]) -> Kept:
    return Kept(Digest(values=line["values"], error=line["error"]), line["asked"])
