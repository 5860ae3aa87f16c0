"""The two records of a capture: the header at its start and the manifest at its end."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

from q36eval.checkpoints.hashing import file_sha256
from q36eval.errors import UsageError
from q36eval.files import canonical_json, json_sha256
from q36eval.probes import Kind
from q36eval.records import DeploymentIdentity, ProbeName, Record
from q36eval.references._files import inside

HEADER_FILE = "capture.json"
MANIFEST_FILE = "pack.json"


class Header(Record):
    """The description of a capture."""

    format: Literal[2] = 2
    kind: Kind
    top_k: None = None
    """Always null, and part of the manifest's hash: earlier versions could capture only the K most likely tokens."""
    probe: ProbeName
    suite_sha256: str
    suite: dict[str, str] = Field(default_factory=dict)
    """The inputs of `suite_sha256`, if known: only for a person, the hash alone decides."""
    identity: DeploymentIdentity

    def differing_fields(self, other: "Header") -> list[str]:
        """Names of the fields in which `other` differs; those of the identity by their own names."""
        mine = [name for name in Header.model_fields if name not in {"identity", "suite"}]
        differing = [name for name in mine if getattr(self, name) != getattr(other, name)]
        return [*differing, *self.identity.differing_fields(other.identity)]


class FileEntry(Record):
    """One written file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Shard(Record):
    """The file of one item's tensors, and the hash of its request."""

    file: str
    asked: str


class Manifest(Header):
    """A finished capture: every file, and totals for a person.

    `tokens` are the scored ones of all items with tensors; `withheld` are the SHA-256 of shared tensors that are not
    stored. `manifest_sha256` is the hash of all the rest.
    """

    items: int
    tokens: int
    hidden_size: int | None = None
    vocabulary: int | None = None
    files: dict[str, FileEntry]
    shards: dict[str, Shard] = Field(default_factory=dict)
    withheld: dict[str, str] = Field(default_factory=dict)
    manifest_sha256: str = ""

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(entry.bytes for entry in self.files.values())

    def sealed(self) -> Self:
        """The manifest with its own hash."""
        return self.model_copy(update={"manifest_sha256": self._own_sha256()})

    def _own_sha256(self) -> str:
        # packs from before it was recorded keep their hash
        body = self.model_dump(mode="json", exclude={"manifest_sha256"} | ({"suite"} if not self.suite else set()))
        return json_sha256(body)

    @property
    def intact(self) -> bool:
        """Whether the manifest itself is unchanged."""
        return self.manifest_sha256 == self._own_sha256()


def to_json(record: Record) -> "bytes":
    """The bytes of a record; deterministic."""
    return canonical_json(record.model_dump(mode="json"), indent=1, ascii_only=False).encode()


def load_header(folder: Path) -> Header:
    """The header of the capture in `folder`.

    Raises:
        UsageError: it cannot be read, or has another format.
    """
    path = folder / HEADER_FILE
    try:
        return Header.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError("pack-unreadable", _unreadable(path, error)) from error


def load_manifest(folder: Path) -> Manifest | None:
    """The manifest of the capture in `folder`; None if unfinished.

    Every file must exist with its size; its content is checked when it is read, or by `damage`.

    Raises:
        UsageError: the manifest is damaged, names a file outside its folder, or a file is missing or truncated.
    """
    manifest = _read(folder / MANIFEST_FILE)
    if manifest is None:
        return None
    faults = _faults(folder, manifest, hashed=False)
    if faults:
        raise UsageError("pack-damaged", f"{faults[0]}; copy the pack again, or delete {folder} and capture it again.")
    return manifest


def _read(path: Path) -> Manifest | None:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UsageError("pack-unreadable", _unreadable(path, error)) from error


def damage(folder: Path) -> list[str]:
    """The errors of a finished capture, with every file hashed again; each entry names the file. Empty if intact.

    Raises:
        UsageError: it is unfinished, or its manifest cannot be read or names a file outside its folder.
    """
    try:
        manifest = _read(folder / MANIFEST_FILE)
    except UsageError as error:
        return [str(error)]
    if manifest is None:
        raise UsageError(
            "pack-incomplete", f"The capture {folder} is unfinished; `q36eval reference capture` goes on with it."
        )
    return _faults(folder, manifest, hashed=True)


def _faults(folder: Path, manifest: Manifest, hashed: bool) -> list[str]:
    faults = []
    if not manifest.intact:
        faults.append(f"{folder / MANIFEST_FILE} is not as it was written")
    for name, entry in manifest.files.items():
        path = inside(folder, name)
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            faults.append(f"{path} is missing")
        elif size != entry.bytes:
            how = "truncated" if size < entry.bytes else "longer than it was"
            faults.append(f"{path} is {how} ({size:,} of {entry.bytes:,} bytes)")
        elif hashed and file_sha256(path) != entry.sha256:
            faults.append(f"{path} is damaged: its contents are not those that were captured")
    listed = {shard.file for shard in manifest.shards.values()}
    faults += [f"{folder / MANIFEST_FILE} lists no hash of {name}" for name in sorted(listed - manifest.files.keys())]
    return faults


def _unreadable(path: Path, error: Exception) -> str:
    detail = error.strerror if isinstance(error, OSError) else "it is not what this version writes"
    return f"{path} cannot be read ({detail}); copy the pack again, or delete {path.parent} and capture it again."
