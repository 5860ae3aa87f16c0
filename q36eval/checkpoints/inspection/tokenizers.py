"""Tokenizer and generation config: present, and equal to the reference's, with what differs in words."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from q36eval.checkpoints.gguf.files import HeldGguf
from q36eval.checkpoints.inspection.damaged_folder import integrity
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity, finding
from q36eval.checkpoints.inspection.gguf import words_findings
from q36eval.checkpoints.inspection.templates import template_findings
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.tokenizer import of_the_same_files, tokenizer_rules
from q36eval.errors import CorruptCheckpointError, UsageError

SHOWN = 3
MALFORMED = (CorruptCheckpointError, OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a file raises whose JSON is not what it should be."""
IGNORED_GENERATION_FIELDS = ("transformers_version", "_from_model_config")


_finding = partial(finding, Section.CONFIGURATION)


def text_findings(
    folder: HeldFolder, reference: HeldFolder | None, vocab_size: int | None, template: str | None = None
) -> list[Finding]:
    """What is wrong with the files that turn text into token ids and back. `template` is the hash of a declared one."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "tokenizer": lambda: _tokenizer(folder, reference),
        "template": lambda: template_findings(folder, reference, template),
        "generation": lambda: _generation(folder, reference),
    }
    findings: list[Finding] = []
    if isinstance(folder, HeldGguf):
        findings += words_findings(folder, reference, vocab_size)
        checks = {"template": checks["template"]}
    for name, check in checks.items():
        try:
            findings += check()
        except MALFORMED as error:
            findings.append(integrity("unreadable-file", name, f"cannot be read: {error}"))
    with suppress(UsageError, *MALFORMED):  # reported above
        findings += _vocabulary(folder, reference, vocab_size)
    return findings


def _tokenizer(folder: HeldFolder, reference: HeldFolder | None) -> list[Finding]:
    if reference is not None and of_the_same_files(folder, reference):
        return []
    try:
        mine = tokenizer_rules(folder)
    except UsageError:
        names = "tokenizer.json, or vocab.json and merges.txt"
        return [_finding("tokenizer-missing", "tokenizer.json", f"the tokenizer is missing ({names}).")]
    lost = _lost_tokens(folder, mine)
    if reference is None:
        return lost
    try:
        theirs = tokenizer_rules(reference)
    except UsageError:
        return lost
    if mine == theirs:
        return lost
    message = "the tokenizer differs from the reference's: " + "; ".join(_tokenizer_differences(mine, theirs))
    return [*lost, _finding("tokenizer-differs", "tokenizer.json", message + ".")]


_LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Of tokenizer_config.json. transformers 5.14 reads one where both are given (its issue 47838)."""


def _lost_tokens(folder: HeldFolder, loaded: dict[str, Any]) -> list[Finding]:
    """Tokens that a file lists and that the loaded tokenizer takes for text."""
    name = "tokenizer_config.json"
    settings = folder.json(name) if name in folder else {}
    listed = [word for key in _LISTS for word in _words(settings.get(key))]
    known = {token["content"] for token in loaded["backend"].get("added_tokens") or []}
    lost = [word for word in dict.fromkeys(listed) if word not in known]
    if not lost:
        return []
    message = (
        f"{name} lists {len(lost)} special tokens that the loaded tokenizer splits into several ids: "
        f"{', '.join(map(repr, lost[:SHOWN]))}. Write one list, and the tokens into tokenizer.json."
    )
    return [_finding("special-token-lost", name, message)]


def _words(given: Any) -> list[str]:
    """The tokens of a list, or of a table by name; each a text or a table with `content`."""
    entries = list(given.values()) if isinstance(given, dict) else given if isinstance(given, list) else []
    words = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    return [word for word in words if isinstance(word, str)]


def _tokenizer_differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Of two `tokenizer_rules`."""
    here, there = _token_ids(mine["backend"]), _token_ids(theirs["backend"])
    moved = [token for token in here.keys() | there.keys() if here.get(token) != there.get(token)]
    moved.sort(key=lambda token: (there.get(token, 1 << 60), token))
    differences = [
        f"token {token!r} is {here.get(token, 'absent')}, the reference's {there.get(token, 'absent')}"
        for token in moved[:SHOWN]
    ]
    if len(moved) > SHOWN:
        differences.append(f"{len(moved) - SHOWN} more tokens")
    for one, other, what in (
        (mine["backend"], theirs["backend"], "section "),
        (mine["backend"].get("model") or {}, theirs["backend"].get("model") or {}, "model."),
    ):
        keys = sorted({*one, *other} - {"model", "vocab", *(["added_tokens"] if moved else [])})
        differences += [f"{what}{key}" for key in keys if one.get(key) != other.get(key)]
    for part in ("special_tokens", "settings"):
        differences += _field_differences(mine[part], theirs[part], sorted({*mine[part], *theirs[part]}))
    return differences or ["an added token's options"]


def _token_ids(core: dict[str, Any]) -> dict[str, int]:
    vocabulary = (core.get("model") or {}).get("vocab") or {}
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {entry[0]: n for n, entry in enumerate(vocabulary)}
    return ids | {token["content"]: token["id"] for token in core.get("added_tokens") or []}


def _field_differences(mine: dict[str, Any], theirs: dict[str, Any], keys: Any) -> list[str]:
    return [
        f"{key} is {_shown(mine.get(key))}, the reference's {_shown(theirs.get(key))}"
        for key in keys
        if mine.get(key) != theirs.get(key) and json.dumps(mine.get(key)) != json.dumps(theirs.get(key))  # NaN != NaN
    ]


def _shown(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _generation(folder: HeldFolder, reference: HeldFolder | None) -> list[Finding]:
    name = "generation_config.json"
    theirs = None if reference is None or name not in reference else reference
    if name not in folder:
        severity = Severity.BLOCKING if theirs is not None else Severity.ADVISORY
        return [_finding("generation-config-missing", name, f"{name} is missing.", severity)]
    mine = folder.json(name)
    if theirs is None:
        return []
    other = theirs.json(name)
    keys = sorted({*mine, *other} - {*IGNORED_GENERATION_FIELDS})
    differing = _field_differences(mine, other, keys)
    if not differing:
        return []
    message = f"{name} differs from the reference's: " + "; ".join(differing) + "."
    return [_finding("generation-config-differs", name, message)]


def _vocabulary(folder: HeldFolder, reference: HeldFolder | None, vocab_size: int | None) -> list[Finding]:
    """Every token id must have a row in the embeddings; rows without a token are padding."""
    if vocab_size is None or isinstance(folder, HeldGguf):
        return []
    as_stored = reference is not None and of_the_same_files(folder, reference) and "tokenizer.json" in folder
    ids = _token_ids(folder.json("tokenizer.json") if as_stored else tokenizer_rules(folder)["backend"])
    if not ids or max(ids.values()) < vocab_size:
        return []
    token = max(ids, key=lambda token: ids[token])
    message = f"token {token!r} has id {ids[token]}, and vocab_size is {vocab_size}."
    return [_finding("vocabulary", "tokenizer.json", message)]
