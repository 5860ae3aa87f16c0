"""A pack: the captures of one reference in one folder, possibly made on another machine, and its head."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Self

from q36eval.errors import UsageError
from q36eval.records import DeploymentIdentity, ProbeName
from q36eval.references._manifest import HEADER_FILE, Header, Manifest, load_header, load_manifest

OPTIONS = {
    "corpus": "--corpus or --suite",
    "answers": "--corpus or --suite",
    "clusters": "--corpus or --suite",
    "overlap": "--corpus",
    "context": "--corpus, or the family",
    "canaries": "--suite, --only, --draws and version of q36eval",
    "own canaries": "--canaries",
}
"""The option that sets a part of a suite."""


USED_FILE = "last-used"
"""An empty file of a pack; its time is when a gate or a capture last opened it."""


def mark_used(folder: Path) -> None:
    """Record the use of a pack; a read-only pack stays unchanged."""
    with suppress(OSError):
        if folder.is_dir():
            (folder / USED_FILE).touch()


@dataclass(frozen=True)
class PackUse:
    """A pack's size in bytes, the time its newest capture was written, and the time of its last use."""

    size_bytes: int
    captured: datetime
    last_used: datetime


def use_of(folder: Path) -> PackUse:
    """The use of the pack in `folder`, even if damaged or unfinished."""
    files = {file: file.stat() for file in folder.rglob("*") if file.is_file()}
    written = [stat.st_mtime for file, stat in files.items() if file.name != USED_FILE]
    captured = max(written, default=folder.stat().st_mtime)
    marked = files[folder / USED_FILE].st_mtime if folder / USED_FILE in files else captured
    times = (datetime.fromtimestamp(seconds, UTC) for seconds in (captured, max(captured, marked)))
    return PackUse(sum(stat.st_size for stat in files.values()), *times)


def _differing(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name and both values, shortened, of the differences among the parts that `ours` holds."""
    return [
        (name, (theirs.get(name, "") or "none")[:16], (ours.get(name, "") or "none")[:16])
        for name in ours
        if theirs.get(name, "") != ours.get(name, "")
    ]


def captures_in(folder: Path) -> Iterator[tuple[Path, Header, Manifest | None]]:
    """Folder, header and manifest (None: unfinished) of every capture of a pack, by name.

    Raises:
        UsageError: one of them is damaged; see `load_manifest`.
    """
    for path in sorted(folder.glob(f"*/{HEADER_FILE}")):
        yield path.parent, load_header(path.parent), load_manifest(path.parent)


@dataclass(frozen=True)
class Pack:
    """The captures of one reference, read-only."""

    folder: Path
    identity: DeploymentIdentity
    captures: tuple[tuple[Path, Header, Manifest | None], ...]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The pack in `folder`; every file in its manifests exists with its size.

        Raises:
            UsageError: no such folder, no pack, captures of several references (naming the difference), or damage.
        """
        if not folder.is_dir():
            raise UsageError(
                "pack-missing", f"There is no reference pack {folder}; name the folder that `reference capture` wrote."
            )
        if (folder / HEADER_FILE).exists():
            raise UsageError("not-a-pack", f"{folder} is one capture of a reference pack; name the folder it is in.")
        captures = tuple(captures_in(folder))
        if not captures:
            raise UsageError(
                "not-a-pack", f"{folder} holds no reference pack; name the folder that `reference capture` wrote."
            )
        identity = captures[0][1].identity
        for path, header, _ in captures[1:]:
            different = identity.differing_fields(header.identity)
            if different:
                raise UsageError(
                    "pack-mixed",
                    f"{folder} holds captures of several references: {path.name} has another {', '.join(different)} "
                    f"than {captures[0][0].name}; name a folder that holds one pack.",
                )
        return cls(folder, identity, captures)

    def of(self, probe: ProbeName) -> list[Manifest]:
        """The captures of that probe.

        Raises:
            UsageError: none exists, or its capture is unfinished.
        """
        mine = [(header, manifest) for _, header, manifest in self.captures if header.probe == probe]
        if not mine:
            held = ", ".join(sorted({header.probe.value for _, header, _ in self.captures}))
            raise UsageError(
                "pack-lacks-probe", f"The reference pack {self.folder} holds nothing for {probe} (it holds {held})."
            )
        finished = [manifest for _, manifest in mine if manifest is not None]
        if not finished:
            raise UsageError(
                "pack-incomplete",
                f"The reference pack {self.folder} is unfinished: its capture for {probe} was interrupted; "
                f"finish it with `q36eval reference capture --out {self.folder}`.",
            )
        return sorted(finished, key=lambda manifest: manifest.suite_sha256)

    def capture_of(
        self, probe: ProbeName, suite_sha256: str, suite: Mapping[str, str] = MappingProxyType({})
    ) -> Manifest:
        """The finished capture of exactly that probe's items.

        Raises:
            UsageError: the pack was captured with another suite; names the differences from `suite` in the most similar
                capture, if recorded, else both hashes.
        """
        finished = self.of(probe)
        for manifest in finished:
            if manifest.suite_sha256 == suite_sha256:
                return manifest
        self.check_suite(probe, suite)
        raise UsageError(
            "pack-of-another-suite",
            f"The reference pack {self.folder} was captured with another {probe} suite: its suite_sha256 is "
            f"{finished[0].suite_sha256[:16]}, this run's is {suite_sha256[:16]}; use the suite and the version of "
            f"q36eval it was captured with.",
        )

    def check_suite(self, probe: ProbeName, suite: Mapping[str, str]) -> None:
        """Refuse a suite if no capture of that probe has the same parts; nothing is refused if any capture recorded
        no parts.

        Raises:
            UsageError: names the differences in the most similar capture, both values, and the options.
        """
        finished = self.of(probe)
        if not suite or not all(manifest.suite for manifest in finished):
            return
        differing = min((_differing(manifest.suite, suite) for manifest in finished), key=len)
        if not differing:
            return
        said = ", ".join(f"{name} (the pack's: {theirs}, this run's: {ours})" for name, theirs, ours in differing)
        options = ", ".join(dict.fromkeys(OPTIONS[name] for name, _, _ in differing if name in OPTIONS))
        advice = f"pass the same {options}" if options else "use the version of q36eval it was captured with"
        raise UsageError(
            "pack-of-another-suite",
            f"The reference pack {self.folder} was captured with another {probe} suite, which differs in {said}; "
            f"{advice}.",
        )

    def check_field(self, name: str, value: str, whose: str) -> None:
        """Refuse a comparison with another deployment; `whose` names the origin of `value` in the message.

        Raises:
            UsageError: that field of the pack's identity differs; names it and both values.
        """
        own = getattr(self.identity, name)
        if own != value:
            raise UsageError(
                "pack-identity",
                f"The reference pack {self.folder} was made with another {name}: the pack's is {own[:16]}, "
                f"{whose} is {value[:16]}; nothing can be compared.",
            )
