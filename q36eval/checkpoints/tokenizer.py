"""What a checkpoint's tokenizer does once it is loaded: its rules, and the hashes that identities hold.

What files say is not enough: transformers adds the words of `extra_special_tokens`, `added_tokens.json` and others
to the vocabulary, and some classes (`Qwen2Tokenizer`) put their own pre-tokenizer in the place of tokenizer.json's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from q36eval.checkpoints.gguf.files import HeldGguf
from q36eval.checkpoints.hashing import json_sha256
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.open_files import SLOW_TOKENIZER_FILES, TEXT_FILES, HeldFolder
from q36eval.checkpoints.reader import one_line
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError

TOKENIZER_FILES = tuple(name for name in TEXT_FILES if not name.startswith("chat_template"))
_CALIBRATION = ("truncation", "padding")
"""Settings that quantization tools leave in tokenizer.json; no answer depends on them."""
_OFFSETS = ("trim_offsets",)
"""Where in the text a token stood, which nobody asks."""
_SETTINGS = ("clean_up_tokenization_spaces", "split_special_tokens")


def load_tokenizer(folder: Path | HeldFolder) -> Any:
    """The tokenizer of a checkpoint folder, from its files as they were opened; nothing of them is executed.

    Raises:
        UsageError: it is a GGUF alone.
        CorruptCheckpointError: it is missing or cannot be read.
    """
    from transformers import AutoTokenizer

    held = hold(folder)
    _check_texts(held)
    _check_added(held)
    try:
        with held.small_files() as place:
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        tokenizer.name_or_path = str(held.path)
        return tokenizer
    except EngineError:
        raise
    except Exception as error:  # the tokenizers library raises bare exceptions for malformed files
        raise CorruptCheckpointError(
            "tokenizer-unreadable", f"{held.path} has no tokenizer that can be read: {one_line(error)}."
        ) from error


def _check_texts(held: HeldFolder) -> None:
    if isinstance(held, HeldGguf) and held.texts is None:
        raise UsageError(
            "reference-required",
            f"{held.path} is measured through its original's tokenizer: name the original with --reference, or as "
            "--branch where a server answers.",
        )


MOST_ADDED = 2**16
"""Words that one file adds to a vocabulary; published checkpoints have some dozens. transformers goes through all of
them more often the more there are."""
_ADDED = (
    ("tokenizer.json", "added_tokens"),
    ("tokenizer_config.json", "added_tokens_decoder"),
    ("tokenizer_config.json", "extra_special_tokens"),
    ("tokenizer_config.json", "additional_special_tokens"),
    ("added_tokens.json", None),
)


def _check_added(held: HeldFolder) -> None:
    for file, entry in _ADDED:
        words = {} if file not in held else held.json(file) if entry is None else held.json(file).get(entry)
        if isinstance(words, list | dict) and len(words) > MOST_ADDED:
            raise CorruptCheckpointError(
                "vocabulary-too-large",
                f"{held.path / file} adds {len(words):,} words to the vocabulary, and {MOST_ADDED:,} are read at most.",
            )


def tokenizer_rules(folder: str | Path | HeldFolder) -> dict[str, Any]:
    """All that decides how text becomes token ids and back, in one writing: `backend` (normalizer, pre-tokenizer, model
    with vocabulary and merges, decoder, added tokens), `special_tokens` by name, and `settings`.

    Raises:
        UsageError: the folder holds no tokenizer.
        CorruptCheckpointError: a file is malformed, or the tokenizer is of a kind whose rules cannot be compared.
    """
    held = hold(folder)
    _check_texts(held)
    if not {"tokenizer.json", *SLOW_TOKENIZER_FILES} & {*held.files}:
        raise UsageError(
            "tokenizer-missing",
            f"{held.path} holds no tokenizer: tokenizer.json (or vocab.json and merges.txt) is needed.",
        )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name in held:
            held.json(name)  # which names a malformed file better than what loads it
    tokenizer = load_tokenizer(held)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        kind = type(tokenizer).__name__
        raise CorruptCheckpointError(
            "tokenizer-unsupported", f"{held.path}: the tokenizer loads as {kind}, whose rules cannot be compared."
        )
    rules = {key: value for key, value in json.loads(backend.to_str()).items() if key not in _CALIBRATION}
    rules["post_processor"] = _post_processor(rules.get("post_processor"))
    rules["decoder"] = _decoder(rules.get("decoder"))
    rules["added_tokens"] = sorted(rules.get("added_tokens") or [], key=lambda token: token["id"])
    # of a model that knows every byte, nothing is unknown; of others the backend holds the token itself
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name != "unk_token"}
    settings = {name: getattr(tokenizer, name, None) for name in _SETTINGS}
    return {"backend": _essential(rules), "special_tokens": special, "settings": _essential(settings)}


def of_the_same_files(folder: HeldFolder, reference: HeldFolder) -> bool:
    """Whether two tokenizers are loaded from the same bytes as the same class: then nothing need be loaded to compare
    them. transformers takes seconds to import."""

    def files(held: HeldFolder) -> dict[str, str]:
        return held.sha256([name for name in TOKENIZER_FILES if name in held])

    def loaded_as(held: HeldFolder) -> list[Any]:
        config = held.json("config.json") if "config.json" in held else {}
        return [config.get(name) for name in ("model_type", "tokenizer_class", "_name_or_path", "auto_map")]

    mine = files(folder)
    return bool(mine) and mine == files(reference) and loaded_as(folder) == loaded_as(reference)


def _post_processor(given: Mapping[str, Any] | None) -> Any:
    """None for one that adds no token."""
    if given is None or given["type"] == "ByteLevel":
        return None
    return given if given["type"] != "TemplateProcessing" or given.get("special_tokens") else None


def _decoder(given: Mapping[str, Any] | None) -> Any:
    """Of one over bytes the type alone: its options are those of the pre-tokenizer of the same name."""
    return {"type": "ByteLevel"} if given is not None and given["type"] == "ByteLevel" else given


def _essential(value: Any) -> Any:
    """Without entries that say nothing, so that a library that writes out more of its defaults gives the same rules."""
    if isinstance(value, dict):
        kept = {key: _essential(entry) for key, entry in value.items() if key not in _OFFSETS}
        return {key: entry for key, entry in kept.items() if entry is not False and entry not in (None, "", [], {})}
    return [_essential(entry) for entry in value] if isinstance(value, list) else value


_known: "WeakKeyDictionary[HeldFolder, str]" = WeakKeyDictionary()


def tokenizer_sha256(folder: str | Path | HeldFolder) -> str:
    """Hash of `tokenizer_rules`: equal where all text becomes the same token ids and the other way round.

    Raises:
        UsageError: the folder holds no tokenizer.
        CorruptCheckpointError: it cannot be loaded.
    """
    held = hold(folder)
    if held not in _known:
        _known[held] = json_sha256(tokenizer_rules(held))
    return _known[held]


def chat_templates(folder: str | Path | HeldFolder) -> dict[str, str]:
    """The texts of the chat templates by name, `default` and those beside it, wherever they are kept.

    Files take the place of what `tokenizer_config.json` says, as in transformers. Of several, that for conversations
    with tools (`tool_use`) is chosen by what is rendered. A processor's own templates (`PROCESSOR_FILES`), which
    engines take before the tokenizer's, stand beside them where they are others.

    Raises:
        CorruptCheckpointError: a file is malformed, or there are more templates than anybody tries.
    """
    held = hold(folder)
    templates = _tokenizer_templates(held)
    for file, prefix in PROCESSOR_FILES.items():
        for name, template in _written_in(held, file).items():
            if templates.get(name) != template:
                templates[prefix if name == "default" else f"{prefix}.{name}"] = template
    if len(templates) > MOST_TEMPLATES:
        raise CorruptCheckpointError(
            "templates-too-many",
            f"{held.path} holds {len(templates):,} chat templates, and {MOST_TEMPLATES} are read at most; keep those "
            f"that are used.",
        )
    return templates


MOST_TEMPLATES = 16
"""Of one checkpoint. Each may take some seconds to be tried."""
PROCESSOR_FILES = {"chat_template.json": "processor", "processor_config.json": "processor_config"}
"""Where transformers' processors keep templates, and what these are called here. vLLM asks the processor first."""


def _written_in(held: HeldFolder, file: str) -> dict[str, str]:
    """The chat templates that a JSON file names."""
    given = (held.json(file).get("chat_template") if file in held else None) or {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        return {str(entry.get("name")): str(entry.get("template")) for entry in given if isinstance(entry, dict)}
    return {str(name): str(template) for name, template in given.items()} if isinstance(given, dict) else {}


def _tokenizer_templates(held: HeldFolder) -> dict[str, str]:
    templates = _written_in(held, "tokenizer_config.json")
    files = {name: Path(name).stem for name in held.files if name.startswith("additional_chat_templates/")}
    files |= {"chat_template.jinja": "default"} if "chat_template.jinja" in held else {}
    return {key: held.text(name, errors="replace") for name, key in files.items()} if files else templates


def template_file(folder: Path | HeldFolder, name: str) -> str:
    """The file that a chat template of that name is in, or would be."""
    held = hold(folder)
    for processors, prefix in PROCESSOR_FILES.items():
        if name.partition(".")[0] == prefix:
            return processors
    file = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
    in_files = any(each.endswith(".jinja") for each in held.files)
    return file if in_files or "tokenizer_config.json" not in held else "tokenizer_config.json"


def chat_template_sha256(folder: str | Path | HeldFolder) -> str:
    """Hash of `chat_templates`."""
    return json_sha256(chat_templates(folder))
