"""Checkpoints on the Hugging Face Hub: from a name to the files of one commit in the local cache.

huggingface_hub downloads, and its cache is the one that other programs share. The environment (HF_HOME, HF_HUB_CACHE,
HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE) counts as it is when a function is called. Only files that a measurement reads
are downloaded; no code of a repository is, and none is run.
"""

import errno
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from q36eval.checkpoints.gguf.files import SUFFIX, VISION, parts_of
from q36eval.checkpoints.open_files import CONFIG_FILES, TEXT_FILES
from q36eval.errors import UsageError
from q36eval.files import real_path, write_atomically
from q36eval.locks import is_held

if TYPE_CHECKING:
    from huggingface_hub import HfApi

README = "README.md"
INDEX = "model.safetensors.index.json"
SMALL_FILES = (*CONFIG_FILES, *TEXT_FILES, README, "preprocessor_config.json", "video_preprocessor_config.json")
"""The last two are a serving engine's, for models with a vision tower."""
TEMPLATE = r"additional_chat_templates/[^/]+\.jinja"
WEIGHTS = (".safetensors", SUFFIX)
ANOTHER_FORM = "consolidated"
"""How files begin in which Mistral publishes the same weights a second time."""
DEFAULT_REVISION = "main"
SECONDS_TO_ANSWER = 10.0

_WORD = r"[A-Za-z0-9_](?:[\w.-]*\w)?"
_NAME = re.compile(
    rf"(?P<repository>{_WORD}/{_WORD})(?:@(?P<revision>[\w+.-]+(?:/[\w+.-]+)*))?(?::(?P<file>[^:@]+))?", re.ASCII
)
_FILE = re.compile(r"[\w+() .-]+(?:/[\w+() .-]+)*\.gguf", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A checkpoint as people name it: `ORG/NAME`, `ORG/NAME@REVISION`, `ORG/NAME:file.gguf`, or with both.

    `revision` is a branch, a tag or a commit; None is the branch `main`. `file` is a GGUF, of a split one any part.
    """

    repository: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that `text` spells; None where it spells none that the Hub could have."""
        match = _NAME.fullmatch(text)
        if match is None or ".." in text or "--" in match["repository"] or text.endswith((".git", ".lock")):
            return None
        repository, revision, file = match["repository"], match["revision"], match["file"]
        parts = [*(revision or "").split("/"), *(file or "").split("/")]
        odd = any(part.startswith((".", "-", " ")) or part.endswith((".", " ")) for part in parts)
        if odd or repository.endswith(SUFFIX) or any(len(part) > 96 for part in repository.split("/")):
            return None
        if file is not None and not _FILE.fullmatch(file):
            return None
        return cls(repository, revision, file)

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.repository}{revision}" + ("" if self.file is None else f":{self.file}")


@dataclass(frozen=True)
class Snapshot:
    """One commit's files on this machine; `place` is their folder, or the .gguf file.

    `missing_bytes` of weights are not here yet, where only the other files were wanted.
    """

    place: Path
    repository: str
    revision: str
    commit: str
    missing_bytes: int = 0

    @property
    def cache(self) -> Path:
        """The folder of all downloads."""
        return next(folder for folder in self.place.parents if folder.name == "snapshots").parents[1]


def fetch(name: HubName, notify: Callable[[str], None], *, weights: bool = True) -> Snapshot:
    """The snapshot of that name, downloaded where the cache lacks files of it; without `weights` the small ones alone.

    `notify` gets a sentence where something is downloaded, a revision moved, or the cache answers for the Hub.

    Raises:
        UsageError: it cannot be had; the code says why: hub-gated, hub-repository-missing, hub-revision-missing,
            hub-file-missing, hub-not-a-checkpoint, hub-several-models, hub-token-invalid, hub-refused, hub-unreachable,
            hub-cache-incomplete, hub-cache-unwritable, hub-disk-full, hub-interrupted.
        KeyboardInterrupt: a signal came; a note says what is kept.
    """
    cache = _Cache.of(name)
    commit, is_online = _commit(cache, notify)
    if not is_online:
        return _kept(cache, commit)
    listed = cache.listed(commit)
    if listed is None:
        with _in_words(cache, begun=True):
            listed = _by_path(cache.api.list_repo_tree(name.repository, recursive=True, revision=commit))
    place, needed = needed_files(name, listed)
    missing = cache.missing(commit, needed)
    wanted = {
        file: of
        for file, of in missing.items()
        if weights or not file.endswith(WEIGHTS) or not cache.contents({file: of})
    }
    if wanted:
        _remove_remains(cache, commit, wanted)
        _check_size(cache, commit, wanted, notify)
        _download(cache, commit, wanted)
    if rest := {file: of for file, of in missing.items() if file not in wanted}:
        return replace(cache.snapshot(commit, place), missing_bytes=sum(cache.contents(rest).values()))
    with suppress(OSError):  # a cache that may only be read
        cache.keep_revision(commit)
    return cache.snapshot(commit, place)


def located(name: HubName) -> Snapshot | None:
    """The snapshot of that name that the cache holds whole, without asking the Hub; None where it holds none."""
    cache = _Cache.of(name)
    commit = cache.known_commit()
    try:
        return None if commit is None else _kept(cache, commit)
    except UsageError:
        return None


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a commit: the name that its content has in the cache, and its size in bytes, None if it is unknown."""

    blob: str
    size: int | None


Files: TypeAlias = Mapping[str, RepositoryFile]
"""By their paths in the repository."""


def needed_files(name: HubName, files: Files) -> tuple[str, Files]:
    """Where the checkpoint is, "" for the folder, else a GGUF; and those files of a commit that are needed.

    Raises:
        UsageError: the file that was named is not among them, several models are, or none is.
    """
    models = _gguf_models(files)
    weights = [file for file in files if file.endswith(".safetensors") and "/" not in file]
    place = name.file
    if place is None and not weights and models:
        if len(models) > 1:
            listed = ", ".join(f"{name}:{model}" for model in models[:8])
            raise UsageError(
                "hub-several-models", f"{name} holds {len(models)} GGUF models; name one of them: {listed}."
            )
        place = models[0]
    if place is not None:
        needed = [*parts_of(place), *(file for file in (README,) if file in files)]
        missing = next((file for file in needed if file not in files), None)
        if missing is not None:
            listed = ", ".join(models[:8]) or "none"
            raise UsageError("hub-file-missing", f"{name} has no file {missing}; its GGUF models are: {listed}.")
    elif "config.json" not in files or not weights:
        raise UsageError(
            "hub-not-a-checkpoint",
            f"{name} is not a checkpoint that can be judged: config.json and safetensors, or a GGUF, are needed "
            f"(pickled *.bin files are not read).",
        )
    else:
        weights = [file for file in weights if not file.startswith(ANOTHER_FORM)] or weights
        templates = [file for file in files if re.fullmatch(TEMPLATE, file)]
        needed = [*(file for file in SMALL_FILES if file in files), *templates, *weights]
    return place or "", {file: files[file] for file in needed}


def _gguf_models(files: Files) -> list[str]:
    """The first file of each; vision towers are none."""
    named = [file for file in sorted(files) if file.endswith(SUFFIX)]
    return [*{parts_of(file)[0]: 0 for file in named if not file.rpartition("/")[2].lower().startswith(VISION)}]


@dataclass(frozen=True)
class _Cache:
    """One repository in the cache of huggingface_hub, with the Hub and the cache folder that the environment names."""

    name: HubName
    root: Path
    api: "HfApi"
    offline: bool

    @classmethod
    def of(cls, name: HubName) -> Self:
        from huggingface_hub import HfApi, constants

        home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
        root = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
        told = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
        offline = told.upper() in constants.ENV_VARS_TRUE_VALUES or constants.is_offline_mode()
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None, library_name="q36eval")
        return cls(name, real_path(Path(os.path.expandvars(root)).expanduser()), api, offline)

    @property
    def folder(self) -> Path:
        return self.root / f"models--{self.name.repository.replace('/', '--')}"

    @property
    def revision(self) -> str:
        return self.name.revision or DEFAULT_REVISION

    def known_commit(self) -> str | None:
        """The commit that the revision is, or that it led to when it was last asked for."""
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        try:
            commit = (self.folder / "refs" / self.revision).read_text().strip()
        except OSError:
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    def keep_revision(self, commit: str) -> None:
        """Remember where the revision leads, for when the Hub cannot be asked."""
        if self.known_commit() != commit:
            place = self.folder / "refs" / self.revision
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, commit)

    def files(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def missing(self, commit: str, needed: Files) -> Files:
        """Those that are not there, or have another size: a machine that went down can lose what it wrote last."""
        return {name: file for name, file in needed.items() if not _is_whole(self.files(commit) / name, file)}

    def contents(self, missing: Files) -> dict[str, int]:
        """Sizes of what is to be downloaded for them, by content; some may be there under another commit."""
        blobs = self.folder / "blobs"
        return {file.blob: file.size or 0 for file in missing.values() if not _is_whole(blobs / file.blob, file)}

    def snapshot(self, commit: str, place: str) -> Snapshot:
        return Snapshot(self.files(commit) / place, self.name.repository, self.revision, commit)

    def listed(self, commit: str) -> Files | None:
        """The commit's files as an earlier download listed them; None where none did."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            return _by_path(get_cached_repo_tree(self.name.repository, revision=commit, cache_dir=self.root))
        except CachedRepoTreeNotFoundError:
            return None


def _is_whole(path: Path, file: RepositoryFile) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def _by_path(tree: Any) -> Files:
    return {
        entry.path: RepositoryFile(entry.blob_id if entry.lfs is None else entry.lfs.sha256, entry.size)
        for entry in tree
        if hasattr(entry, "blob_id") and ".." not in entry.path  # the others are folders
    }


class _UnreachableError(Exception):
    """The Hub gave no answer; the text says how that showed."""


def _commit(cache: _Cache, notify: Callable[[str], None]) -> tuple[str, bool]:
    """The commit that the name leads to, and whether the Hub answered; a commit that is here whole needs no answer."""
    name, known = cache.name, cache.known_commit()
    if known == cache.revision and cache.listed(known) is not None and located(name) is not None:
        return known, False
    reason = "HF_HUB_OFFLINE is set"
    if not cache.offline:
        try:
            with _in_words(cache):
                info = cache.api.model_info(name.repository, revision=name.revision, timeout=SECONDS_TO_ANSWER)
            commit = info.sha or ""
            if not _COMMIT.fullmatch(commit):
                raise UsageError("hub-refused", f"The answer for {name} names no commit: check HF_ENDPOINT.")
            if known not in (None, commit):
                notify(f"{name.repository}@{cache.revision} moved from commit {known} to {commit}.")
            return commit, True
        except _UnreachableError as error:
            reason = str(error)
    if known is None:
        raise UsageError(
            "hub-unreachable",
            f"{name} is not in the cache {cache.root} and cannot be downloaded: {reason}. Run the command with a "
            f"network, or set HF_HOME to a cache that holds it.",
        )
    if known != cache.revision:
        notify(f"{name} is read from the cache at commit {known}; newer commits are unknown: {reason}.")
    return known, False


def _kept(cache: _Cache, commit: str) -> Snapshot:
    """That commit from the cache alone.

    Raises:
        UsageError: files of it are missing there.
    """
    listed = cache.listed(commit)
    try:
        place, needed = needed_files(cache.name, _guessed(cache.files(commit)) if listed is None else listed)
    except UsageError as error:
        if listed is not None or error.code == "hub-several-models":
            raise
        unknown = ("config.json", "model.safetensors") if cache.name.file is None else (cache.name.file,)
        place, needed = "", {file: RepositoryFile("", None) for file in unknown}
    if missing := [*cache.missing(commit, needed)]:
        more = f" and {len(missing) - 1} more files" if missing[1:] else ""
        raise UsageError(
            "hub-cache-incomplete",
            f"The cache {cache.root} lacks {missing[0]}{more} of {cache.name} at commit {commit}; run the command with "
            f"a network to download the rest.",
        )
    return cache.snapshot(commit, place)


def _guessed(folder: Path) -> Files:
    """The files of a commit that another program downloaded, perhaps in part, as its index and numbered parts tell."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    parts = {part for name in names for part in parts_of(name)}
    names |= parts | {INDEX for part in parts if part.endswith(".safetensors") and parts_of(part) != [part]}
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # reported when it is read
        names |= {str(name) for name in json.loads((folder / INDEX).read_bytes())["weight_map"].values()}
    return {name: RepositoryFile("", None) for name in names}


def _remove_remains(cache: _Cache, commit: str, missing: Files) -> None:
    """Delete what a killed download left, and files of a wrong size: huggingface_hub continues neither.

    Who still downloads holds the lock of the file.
    """
    blobs, locks = cache.folder / "blobs", cache.root / ".locks" / cache.folder.name
    remains = [
        part for part in blobs.glob("*.incomplete") if not is_held(locks / f"{part.name.partition('.')[0]}.lock")
    ]
    for name, file in missing.items():
        both = {real_path(cache.files(commit) / name), blobs / file.blob}  # a cached list does not name large contents
        remains += [path for path in both if path.is_file() and not _is_whole(path, file)]
    for path in remains:
        with suppress(OSError):
            path.unlink()


def _check_size(cache: _Cache, commit: str, missing: Files, notify: Callable[[str], None]) -> None:
    """Report what will be downloaded, and refuse what does not fit."""
    sizes = cache.contents(missing)
    size = sum(sizes.values())
    free = shutil.disk_usage(next(place for place in (cache.folder, *cache.folder.parents) if place.is_dir())).free
    amounts = f"{amount(size)} of {cache.name} at commit {commit}"
    if size > free:
        raise UsageError(
            "hub-disk-full",
            f"{amounts} do not fit into the cache {cache.root}, where {amount(free)} are free; make room there, or "
            f"set HF_HOME to a larger disk.",
        )
    if sizes:
        notify(f"Downloading {len(sizes)} files, {amounts}, to {cache.root} ({amount(free)} are free).")


def amount(n_bytes: int) -> str:
    """Bytes as a person reads them: `20.9 GiB`, `13.4 MiB`."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def _download(cache: _Cache, commit: str, files: Files) -> None:
    """Download those files with the library's own progress bars, in a process that ends with this one.

    In this process a Ctrl-C would wait until the library is through with all files that it is at.
    """
    job = json.dumps({"name": str(cache.name), "commit": commit, "files": [*files]})
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_CACHE": str(cache.root)}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],  # no module of the current folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
        start_new_session=True,  # so that only this process gets a signal from the terminal
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(f"{job}\n")
                process.stdin.flush()
            problem = process.stdout.read()
        except BaseException as error:
            process.kill()
            error.add_note(f"The files of {cache.name} that are complete are kept; run the command again for the rest.")
            raise
    if problem:
        raise UsageError(**json.loads(problem))
    if process.returncode or cache.missing(commit, files):
        raise _interrupted(cache, f"its process ended with {process.returncode}")


def _main() -> None:
    """The process of `_download`: a job comes in, and what went wrong goes out."""
    job, answer = json.loads(sys.stdin.readline()), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()  # the parent is gone
    name = HubName.parse(job["name"])
    assert name is not None
    cache = _Cache.of(name)
    try:
        with _in_words(cache, begun=True):
            cache.api.snapshot_download(
                name.repository,
                revision=job["commit"],
                cache_dir=cache.root,
                allow_patterns=[glob.escape(file) for file in job["files"]],
            )
    except UsageError as error:
        print(json.dumps({"code": error.code, "message": str(error)}), file=answer, flush=True)
    os._exit(0)  # threads of the library that are still waiting are not waited for


def _interrupted(cache: _Cache, reason: str) -> UsageError:
    return UsageError(
        "hub-interrupted",
        f"The download of {cache.name} was interrupted ({reason}); complete files are kept: run the command again.",
    )


@contextmanager
def _in_words(cache: _Cache, *, begun: bool = False) -> Iterator[None]:
    """Errors of the library as a sentence; none of theirs is kept, since some hold a token or a signed address.

    `begun` is whether the Hub has answered before, so that silence is an interruption.

    Raises:
        UsageError: what went wrong, and what to do.
        _UnreachableError: the Hub did not answer, and had not `begun`.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if type(error).__name__.startswith("LocalEntry") else None
        raise _problem(cache, cause or error, begun) from None


_BAD_TOKEN = ("hub-token-invalid", "The Hub does not accept the token: correct HF_TOKEN, or run `hf auth login`.")


def _problem(cache: _Cache, error: BaseException, begun: bool) -> Exception:
    from httpx import LocalProtocolError, TransportError
    from huggingface_hub import errors

    repository, endpoint = cache.name.repository, re.sub(r"//[^/]*@", "//", cache.api.endpoint)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    reason = f"{endpoint} " + (f"answers with HTTP status {status}" if status else f"failed, {type(error).__name__}")
    match error:
        case errors.GatedRepoError():
            code, sentence = (
                "hub-gated",
                f"{repository} is gated: accept its conditions at {endpoint}/{repository}, and set HF_TOKEN to a token "
                f"of that account.",
            )
        case errors.RepositoryNotFoundError():
            code, sentence = (
                "hub-repository-missing",
                f"{repository} does not exist at {endpoint}, or it is private: check the spelling, or set HF_TOKEN to "
                f"a token that may read it.",
            )
        case errors.RevisionNotFoundError():
            code, sentence = (
                "hub-revision-missing",
                f"{repository} has no revision {cache.revision!r}: name a branch, tag or commit.",
            )
        case errors.RemoteEntryNotFoundError():
            code, sentence = "hub-file-missing", f"{endpoint} lacks a file that {cache.name} lists; try again later."
        case LocalProtocolError() | UnicodeError():  # not a header's text
            code, sentence = _BAD_TOKEN
        case errors.HfHubHTTPError() if status == 401:
            code, sentence = _BAD_TOKEN
        case errors.HfHubHTTPError() if status < 500 and status not in (408, 429):
            code, sentence = "hub-refused", f"{cache.name} is refused, {reason}: check HF_ENDPOINT and HF_TOKEN."
        case errors.HfHubHTTPError() | TransportError() | errors.OfflineModeIsEnabled():
            return _interrupted(cache, reason) if begun else _UnreachableError(reason)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            code, sentence = (
                "hub-disk-full",
                f"The disk of the cache {cache.root} is full; complete files are kept: make room there, and run the "
                f"command again.",
            )
        case OSError() if error.errno:
            code, sentence = "hub-cache-unwritable", f"The cache {cache.root} cannot be written: {error.strerror}."
        case _:  # a file of the wrong size, for one
            return _interrupted(cache, reason)
    return UsageError(code, sentence)


if __name__ == "__main__":
    _main()
