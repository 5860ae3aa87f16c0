"""Which files a GGUF checkpoint is, held open; and the text side that it is measured with.

A person names a file, of a split set any one, or a folder that holds one model. Beside the model a vision tower
(`mmproj-…`) may lie: it is named, and not judged.

A GGUF carries a tokenizer in llama.cpp's own form, which transformers does not load. So a branch is measured through
the reference's tokenizer, on the reference's token ids: of its own it has the chat template, and inspection compares
the tokens, merges and special tokens with what the converter makes of the reference's
(`q36eval.checkpoints.inspection.gguf`).
"""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.checkpoints.gguf.header import GgufHeader, read_gguf_header
from q36eval.checkpoints.open_files import TEXT_FILES, HeldFile, HeldFolder, MadeFile
from q36eval.errors import CorruptCheckpointError, UsageError

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)")
MOST_PARTS = 1000
VISION = "mmproj"
"""How the file of a vision tower begins, as llama.cpp and its users name it."""
TEMPLATE = "tokenizer.chat_template"
BORROWED = ("config.json", "generation_config.json", *(name for name in TEXT_FILES if "chat_template" not in name))


def model_files(path: Path) -> list[str]:
    """Names of the files that hold the model, beside each other, in order; none where there is no GGUF.

    Raises:
        UsageError: a folder holds several models, or a file of a split set is missing.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        return _set_of(path.parent, path.name)
    if not path.is_dir():
        return []
    names = sorted(file.name for file in path.glob(f"*{SUFFIX}") if not file.name.lower().startswith(VISION))
    sets = {tuple(_set_of(path, name)) for name in names}
    if len(sets) > 1:
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise UsageError("gguf-ambiguous", f"{path} holds several models ({listed}): name one of the files.")
    return list(sets.pop()) if sets else []


def vision_files(path: Path) -> list[str]:
    """Names of vision towers beside the model in a folder."""
    return sorted(file.name for file in path.glob(f"*{SUFFIX}") if file.name.lower().startswith(VISION))


def parts_of(name: str) -> list[str]:
    """The names of all files of a split set, by any one of them; of another file its own."""
    match = _PART.fullmatch(name)
    count = int(match["count"]) if match else 1
    if match is None or not 0 < count <= MOST_PARTS:
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{count:05d}{match['suffix']}" for part in range(1, count + 1)]


def _set_of(folder: Path, name: str) -> list[str]:
    names = parts_of(name)
    for each in names:
        file = folder / each
        if not file.exists():
            raise UsageError("file-missing", f"{file} is missing: a model in {len(names)} files needs all of them.")
        if not file.is_file():
            raise UsageError("file-not-regular", f"{file} is not a regular file.")
    return names


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF, or a folder of nothing but one: safetensors beside it are what is meant."""
    if path.suffix == SUFFIX and path.exists() and not path.is_dir():
        return True
    return path.is_dir() and any(path.glob(f"*{SUFFIX}")) and not any(path.glob("*.safetensors*"))


class HeldGguf(HeldFolder):
    """A GGUF checkpoint, its files held open by name; with `texts`, the text files of the reference beside them.

    Raises:
        UsageError: the folder holds several models, or a file of a split set is missing.
        EngineError: a file cannot be opened.
    """

    def __init__(self, path: Path, texts: HeldFolder | None = None) -> None:
        self.path, self.texts = path, texts
        self._folder = path if path.is_dir() else path.parent
        files: dict[str, HeldFile] = {name: HeldFile(self._folder / name) for name in self._present()}
        self._names = list(files)
        self.files: Mapping[str, HeldFile] = files
        files |= self._own_texts() | ({} if texts is None else _borrowed(texts))

    @property
    def weight_files(self) -> list[str]:
        return self._names

    @property
    def identity_files(self) -> list[str]:
        """The files of the model: what is measured beside them belongs to the reference."""
        return self._names

    def _present(self) -> list[str]:
        return model_files(self.path)

    @cached_property
    def vision_files(self) -> list[str]:
        """Vision towers beside the model, where a folder was named."""
        return vision_files(self.path) if self.path.is_dir() else []

    @cached_property
    def headers(self) -> list[GgufHeader]:
        """Of every file, in order.

        Raises:
            CorruptCheckpointError: one cannot be read.
        """
        return [read_gguf_header(self.files[name]) for name in self._names]

    @property
    def metadata(self) -> dict[str, Any]:
        """The entries of the first file, which has all that are about the model.

        Raises:
            CorruptCheckpointError: a header cannot be read.
        """
        return self.headers[0].metadata if self.headers else {}

    def _own_texts(self) -> dict[str, HeldFile]:
        try:
            metadata = self.metadata
        except CorruptCheckpointError:  # raised where the model is opened
            return {}
        made = {"chat_template.jinja": metadata.get(TEMPLATE)}
        prefix = f"{TEMPLATE}."
        for key, value in metadata.items():
            if key.startswith(prefix) and re.fullmatch(r"\w+", key.removeprefix(prefix)):
                made[f"additional_chat_templates/{key.removeprefix(prefix)}.jinja"] = value
        return {
            name: MadeFile(self._folder / name, text.encode("utf-8", "backslashreplace"))
            for name, text in made.items()
            if isinstance(text, str)
        }


def _borrowed(texts: HeldFolder) -> dict[str, HeldFile]:
    """The reference's text files without its chat template."""
    files = {name: texts.files[name] for name in BORROWED if name in texts}
    if "tokenizer_config.json" in files:
        settings = texts.json("tokenizer_config.json")
        if settings.pop("chat_template", None) is not None:
            path = files["tokenizer_config.json"].path
            files["tokenizer_config.json"] = MadeFile(path, json.dumps(settings).encode())
    return files
