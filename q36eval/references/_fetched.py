"""A pack from elsewhere: any address supported by fsspec, fetched once and cached by content.

Two addresses of one pack are fetched once, and a pack that changed at its address is another one. A file gets its name
when its bytes match the hash in the pack's manifest, the folder when all files are complete: an interrupted fetch is
continued, and a partial pack is never used.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from q36eval.checkpoints.hashing import file_sha256
from q36eval.errors import UsageError
from q36eval.files import json_sha256, replacing
from q36eval.locks import exclusive
from q36eval.references._files import cannot_write, inside, remove_temporaries, sha256_of, write_whole
from q36eval.references._manifest import HEADER_FILE, MANIFEST_FILE, FileEntry, Manifest

BLOCK_BYTES = 8 * 2**20
BESIDE = (".json", ".jsonl")
"""Files next to a pack's captures: noise floors, sampled answers, templates. Each contains its own hash, or is compared
with the data it is used for."""
LARGEST_SMALL_BYTES = 256 * 2**20
USER_INFO = re.compile(r"(?<=://)[^/\s]*@")
QUERY = re.compile(r"\?[^\s'\"]*")


def is_address(named: str) -> bool:
    """Whether a pack is given by an address, not by a local folder."""
    return "://" in named


def fetched(address: str, cache: Path) -> Path:
    """The folder below `cache` with the pack at an address.

    Raises:
        UsageError: the address is not supported, has no finished pack, or a file repeatedly does not match its
            manifest.
    """
    system, root = _system(address)
    named = shown(address)
    with _read_from(f"The reference pack {named}"):
        small = _small_files(system, root, named)
    manifests = _manifests(small, named)
    listed = {f"{folder}/{name}": entry for folder, one in manifests.items() for name, entry in one.files.items()}
    small = {name: payload for name, payload in small.items() if name not in listed}
    key = json_sha256({name: sha256_of(payload) for name, payload in small.items()})[:32]
    place, partial = cache / key, cache / f"{key}.part"
    sizes = {name: len(payload) for name, payload in small.items()}
    sizes |= {name: entry.bytes for name, entry in listed.items()}
    if _whole(place, sizes):
        return place
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / f"{key}.lock", lambda: None):
            if not _whole(place, sizes):
                if place.is_dir():  # some files are missing; the others are reused
                    shutil.rmtree(partial, ignore_errors=True)
                    place.rename(partial)
                for name, entry in listed.items():
                    path = inside(partial, name)
                    if not _has_size(path, entry.bytes):  # a file has its name only if its hash was right
                        _fetch_file(system, f"{root.rstrip('/')}/{name}", path, entry, f"{named}/{name}")
                for folder in manifests:
                    remove_temporaries(partial / folder)
                for name, payload in small.items():
                    write_whole(inside(partial, name), payload)
                partial.rename(place)
    except OSError as error:
        raise cannot_write(cache, error) from error
    return place


def shown(address: str) -> str:
    """The address without credentials: names, passwords, signatures and tokens stay out of logs."""
    return QUERY.sub("", USER_INFO.sub("", address))


def _whole(place: Path, sizes: Mapping[str, int]) -> bool:
    """Whether a pack has its name and all its files their sizes (their hashes were checked when written)."""
    return place.is_dir() and all(_has_size(inside(place, name), size) for name, size in sizes.items())


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


@contextmanager
def _read_from(what: str) -> Iterator[None]:
    """Turns the errors of every kind of file system into one sentence.

    Raises:
        UsageError: the data cannot be read.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        said = " ".join(shown(str(error)).split()).rstrip(".") or type(error).__name__
        raise UsageError("pack-unreadable", f"{what} cannot be read: {said}.") from error


def _system(address: str) -> tuple[Any, str]:
    import fsspec

    options: dict[str, Any] = {}
    if address.startswith("hf://"):  # an already open file system would return its cached listing
        options = {"endpoint": os.environ.get("HF_ENDPOINT") or None, "skip_instance_cache": True}
    try:
        return fsspec.core.url_to_fs(address, **options)  # type: ignore[no-any-return]
    except Exception as error:  # from whichever library fsspec chose
        raise UsageError(
            "address-unsupported", f"Nothing here reads {shown(address)}: {shown(str(error)).rstrip('.')}."
        ) from error


def _small_files(system: Any, root: str, address: str) -> dict[str, bytes]:
    """The files next to the captures, and each capture's header and manifest, by their names within the pack."""
    prefix = root.rstrip("/") + "/"
    names = sorted(name.removeprefix(prefix) for name in system.find(root, maxdepth=2) if name.startswith(prefix))
    finished = {name.partition("/")[0] for name in names if name.endswith(f"/{MANIFEST_FILE}")}
    of_captures = {f"{folder}/{file}" for folder in finished for file in (HEADER_FILE, MANIFEST_FILE)}
    wanted = [name for name in names if name in of_captures or ("/" not in name and name.endswith(BESIDE))]
    if not finished:
        raise UsageError(
            "pack-missing", f"{address} holds no finished reference pack; name what `reference capture --out` wrote."
        )
    kept = {}
    for name in wanted:
        if system.size(prefix + name) > LARGEST_SMALL_BYTES:
            raise UsageError(
                "not-a-pack", f"{address} holds {name} of more than {LARGEST_SMALL_BYTES:,} bytes; it is not a pack."
            )
        kept[name] = system.cat_file(prefix + name)
    return kept


def _manifests(small: Mapping[str, bytes], address: str) -> dict[str, Manifest]:
    """The manifests by the folder of each capture."""
    manifests = {}
    for name, payload in small.items():
        folder, _, file = name.partition("/")
        if file != MANIFEST_FILE:
            continue
        try:
            manifest = Manifest.model_validate_json(payload)
        except ValidationError as error:
            raise _changed(f"{address}/{name}") from error
        if not manifest.intact:
            raise _changed(f"{address}/{name}")
        manifests[folder] = manifest
    return manifests


def _changed(named: str) -> UsageError:
    return UsageError("pack-damaged", f"{named} differs from the captured file; copy the pack there again.")


def _fetch_file(system: Any, source: str, path: Path, entry: FileEntry, named: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as half:
        with half.open("wb") as writer:
            for block in _blocks(system, source, named):
                writer.write(block)
                if writer.tell() > entry.bytes:  # extra bytes are not in the manifest, and could fill the disk
                    break
        if half.stat().st_size != entry.bytes or file_sha256(half) != entry.sha256:
            raise _changed(named)


def _blocks(system: Any, source: str, named: str) -> Iterator[bytes]:
    with _read_from(named), system.open(source, "rb") as reader:
        while block := reader.read(BLOCK_BYTES):
            yield block
