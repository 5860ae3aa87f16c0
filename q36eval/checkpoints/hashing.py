"""Content hashes of a checkpoint folder: what a deployment's identity is made of."""

import hashlib
from pathlib import Path
from typing import Any

from q36eval.checkpoints.held import CONFIG_FILES, SLOW_TOKENIZER_FILES, HeldFolder, hold
from q36eval.errors import UsageError
from q36eval.files import canonical_json

TOKENIZER_SETTINGS = (
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "bos_token",
    "clean_up_tokenization_spaces",
    "eos_token",
    "pad_token",
    "unk_token",
)


def file_sha256(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _json_sha256(document: Any) -> str:
    canonical = canonical_json(document, ascii_only=False, compact=True, non_finite=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def checkpoint_sha256(path: str | Path | HeldFolder) -> str:
    """Hash of everything that decides what the model computes: configuration files and safetensors, by name.

    Raises:
        UsageError: not a folder, or without config.json or safetensors.
        ChangedError: a file became shorter since it was opened.
    """
    folder = hold(path)
    if not folder.weight_files or "config.json" not in folder:
        raise UsageError(f"{folder.path} is not a checkpoint: config.json and safetensors files are needed.")
    files = [name for name in CONFIG_FILES if name in folder]
    return _json_sha256(folder.sha256([*files, *folder.weight_files]))


def tokenizer_sha256(path: str | Path | HeldFolder) -> str:
    """Hash of how text becomes token ids, whatever the formatting of the files and whatever the chat template.

    `truncation` and `padding` are left out: quantization tools store the settings of their calibration there.

    Raises:
        UsageError: the folder holds no tokenizer.
    """
    folder = hold(path)
    parts: dict[str, Any] = {}
    if "tokenizer.json" in folder:
        core = folder.json("tokenizer.json")
        parts["core"] = {key: value for key, value in core.items() if key not in ("truncation", "padding")}
    else:
        parts |= folder.sha256([name for name in SLOW_TOKENIZER_FILES if name in folder])
    if not parts:
        raise UsageError(f"{folder.path} holds no tokenizer: tokenizer.json (or vocab.json and merges.txt) is needed.")
    if "tokenizer_config.json" in folder:
        settings = folder.json("tokenizer_config.json")
        kept = {key: settings.get(key) for key in TOKENIZER_SETTINGS}
        parts["settings"] = {key: _content(value) for key, value in kept.items() if value is not None}
    return _json_sha256(parts)


def _content(value: Any) -> Any:
    """A special token's text, whether stored as text or as an added-token object."""
    return value.get("content") if isinstance(value, dict) else value


def chat_template_sha256(path: str | Path | HeldFolder) -> str:
    """Hash of the chat template's text: `chat_template.jinja`, else that in `tokenizer_config.json`, else none."""
    folder = hold(path)
    template: Any = ""
    if "chat_template.jinja" in folder:
        template = folder.text("chat_template.jinja")
    elif "tokenizer_config.json" in folder:
        template = folder.json("tokenizer_config.json").get("chat_template") or ""
    return _json_sha256(template)
