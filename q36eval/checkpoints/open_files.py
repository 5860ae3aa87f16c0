"""A checkpoint's files as they were opened: each held by one descriptor, and read and hashed through it.

A file that is replaced by another leaves the descriptor with the old one, so nothing read mixes the two. One that is
written to in place does not: so its status (inode, size, times) is compared with that at opening after every use, and a
file that was written to, touched or replaced is refused, whatever it holds.
"""

import hashlib
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from q36eval.errors import ChangedError, CorruptCheckpointError, EngineError, UsageError

CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "model.safetensors.index.json",
)
SLOW_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.model")
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    *SLOW_TOKENIZER_FILES,
)
PATTERNS = ("*.safetensors", "additional_chat_templates/*.jinja")
"""With the files named above, all that decides what a model computes and which text it sees. Others may change."""

WEIGHTS = (".safetensors", ".gguf")
MOST_TEXT_BYTES = 2**26
"""Of a file that is no weights'; the largest published, a tokenizer.json of 262,144 tokens, has 33 MB. It is read as a
whole, and three million tokens take two minutes."""
CHUNK_BYTES = 2**20
"""What is read at once to be hashed: it stays in the processor's cache."""
HASHING_THREADS = 16


class HeldFile:
    """One file, held open. `size` is what it had when it was opened.

    Raises:
        EngineError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise _unreadable(path, error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self.size, self._opened = status.st_size, _status(status)
        self._hashing = threading.Lock()
        self._sha256 = ""

    def read_into(self, target: memoryview, begin: int) -> int:
        """Fill `target` with the bytes from `begin` on; returns how many there were.

        Raises:
            EngineError: the system cannot read it, which says nothing of the checkpoint.
        """
        done = 0
        try:
            while done < len(target):  # one call reads 2 GiB at most
                count = os.preadv(self._descriptor, [target[done:]], begin + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return done

    def read(self, begin: int = 0, size: int | None = None) -> bytes:
        """The bytes [begin, begin + size), all from `begin` on without `size`; fewer where the file ends before."""
        data = bytearray(max(0, self.size - begin) if size is None else size)
        return bytes(data[: self.read_into(memoryview(data), begin)])

    def sha256(self) -> str:
        """SHA-256 of its bytes, in hexadecimal; computed once.

        Raises:
            ChangedError: it is shorter than when it was opened.
        """
        with self._hashing:
            if not self._sha256:
                running, begin = hashlib.sha256(), 0
                chunk = memoryview(bytearray(min(CHUNK_BYTES, self.size)))
                while begin < self.size:
                    count = self.read_into(chunk[: self.size - begin], begin)
                    if not count:
                        raise _changed(self.path, "was truncated")
                    running.update(chunk[:count])
                    begin += count
                self._sha256 = running.hexdigest()
            return self._sha256

    def check(self) -> None:
        """Compare its status with that at opening.

        Raises:
            ChangedError: it is gone, or was truncated, replaced, written to or touched.
        """
        now = _status(os.fstat(self._descriptor))
        try:
            there = _status(self.path.stat())
        except OSError as error:
            raise _changed(self.path, "was removed") from error
        if there[:2] != now[:2]:
            raise _changed(self.path, "was replaced")
        if now[2] < self.size:
            raise _changed(self.path, "was truncated")
        if now != self._opened:
            raise _changed(self.path, "was written to or touched")


class MadeFile(HeldFile):
    """A file that is no file: a text that lies in another one, such as the chat template of a GGUF."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.size, self._data = path, len(data), data

    def read_into(self, target: memoryview, begin: int) -> int:
        chunk = self._data[begin : begin + len(target)]
        target[: len(chunk)] = chunk
        return len(chunk)

    def sha256(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    def check(self) -> None:
        """Nothing can write to it."""


def _status(stat: os.stat_result) -> tuple[int, int, int, int, int]:
    return stat.st_ino, stat.st_dev, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _changed(path: Path, how: str) -> ChangedError:
    return ChangedError(
        "files-changed",
        f"The checkpoint changed while it was judged: {path} {how}; run the command again when nothing writes there.",
    )


def _unreadable(path: Path, error: OSError) -> EngineError:
    return EngineError(
        "file-unreadable",
        f"{path} cannot be read: {error.strerror}. That says nothing of the checkpoint: make it readable, and run the "
        f"command again.",
    )


class HeldFolder:
    """A checkpoint folder, each of its `files` held open by name; a folder that is not there holds none.

    Raises:
        EngineError: it cannot be looked into, or a file in it cannot be opened.
        CorruptCheckpointError: a file leads to one of another name somewhere else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: Mapping[str, HeldFile] = {name: self._held(name) for name in self._present()}

    def _held(self, name: str) -> HeldFile:
        """A text of the checkpoint may be printed, so a link must not make it another file: it leads to a file of its
        own name, or into the folder, or into the Hub cache's folder of contents."""
        file, home = self.path / name, self.path.resolve()
        there = file.resolve()
        own = there.name == file.name or there.is_relative_to(home) or there.parent == home.parent.parent / "blobs"
        if not own and not name.endswith(WEIGHTS):
            raise CorruptCheckpointError(
                "link-elsewhere", f"{file} is a link to {there}, outside of the checkpoint; put the file itself there."
            )
        return HeldFile(file)

    def _present(self) -> list[str]:
        named = [self.path / name for name in (*CONFIG_FILES, *TEXT_FILES)]
        try:
            matching = [file for pattern in PATTERNS for file in self.path.glob(pattern)]
            return sorted({file.relative_to(self.path).as_posix() for file in (*named, *matching) if file.is_file()})
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def __contains__(self, name: str) -> bool:
        return name in self.files

    @property
    def weight_files(self) -> list[str]:
        """Names of the safetensors files, in order."""
        return [name for name in self.files if name.endswith(".safetensors")]

    @property
    def identity_files(self) -> list[str]:
        """Names of what decides what the model computes: configuration and weights.

        Raises:
            UsageError: there is no config.json, or no weights.
        """
        if not self.weight_files or "config.json" not in self:
            raise UsageError(
                "not-a-checkpoint", f"{self.path} is not a checkpoint: config.json and safetensors files are needed."
            )
        return [*(name for name in CONFIG_FILES if name in self), *self.weight_files]

    def text(self, name: str, errors: str = "strict") -> str:
        """A file's text, in UTF-8.

        Raises:
            CorruptCheckpointError: it is larger than any text of a checkpoint.
        """
        self._check_sizes([name])
        return self.files[name].read().decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")

    def _check_sizes(self, names: list[str]) -> None:
        for name in names:
            if not name.endswith(WEIGHTS) and self.files[name].size > MOST_TEXT_BYTES:
                raise CorruptCheckpointError(
                    "file-too-large",
                    f"{self.path / name} takes {self.files[name].size:,} bytes, and {MOST_TEXT_BYTES:,} are read at "
                    f"most; download it again.",
                )

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object of the folder.

        Raises:
            UsageError: the file is missing.
            CorruptCheckpointError: it is too large, is not a JSON object, or one in it names an entry twice, of which
                every reader takes the one it likes.
        """
        file = self.path / name
        if name not in self.files:
            found = "a pipe, a device or a folder" if file.exists() else "missing"
            raise UsageError(
                "file-missing",
                f"{file} is {found}: a checkpoint is a Hugging Face folder with config.json and safetensors.",
            )
        try:
            document = json.loads(self.text(name), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpointError(
                "json-malformed", f"{file} is not valid JSON ({error}); download it again."
            ) from error
        if not isinstance(document, dict):
            raise CorruptCheckpointError("json-malformed", f"{file} is not a JSON object; download it again.")
        return document

    @contextmanager
    def small_files(self) -> Iterator[Path]:
        """A folder of all but the weights, as they were opened, for libraries that read by path.

        Raises:
            CorruptCheckpointError: one is larger than any text of a checkpoint.
            EngineError: it cannot be written, which says nothing of the checkpoint.
        """
        small = sorted(self.files.keys() - {*self.weight_files})
        self._check_sizes(small)
        with TemporaryDirectory(prefix="q36eval-") as place:
            for name in small:
                copy = Path(place, name)
                try:
                    copy.parent.mkdir(exist_ok=True)
                    copy.write_bytes(self.files[name].read())
                except OSError as error:
                    raise EngineError(
                        "file-unwritable",
                        f"A copy of {self.path / name} cannot be written to {place}: {error.strerror}; make room "
                        f"there, and run the command again.",
                    ) from error
            yield Path(place)

    def sha256(self, names: list[str]) -> dict[str, str]:
        """SHA-256 of those files, by name; each is read for it once, however often it is asked for.

        Raises:
            ChangedError: one is shorter than when it was opened.
            CorruptCheckpointError: one is no weights' and larger than any text of a checkpoint.
        """
        self._check_sizes(names)
        threads = min(HASHING_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, thread_name_prefix="hashing") as pool:
            return dict(zip(names, pool.map(lambda name: self.files[name].sha256(), names), strict=True))

    def check(self) -> None:
        """Compare every file's status with that at opening.

        Raises:
            ChangedError: a file changed, is gone, or came; it is named.
        """
        for file in self.files.values():
            file.check()
        came = sorted({*self._present()} - self.files.keys())
        if came:
            raise _changed(self.path / came[0], "came into the folder")

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """What is made of its files in between counts only where nothing wrote to them meanwhile.

        Raises:
            ChangedError: something did, also where that made what reads them raise another error.
        """
        self.check()
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a ValueError where it names an entry twice."""
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} is named twice")
    return document
