"""Reading what a person wrote in YAML: bounded in size, each key once, no aliases."""

from pathlib import Path
from typing import Any

import yaml

from q36eval.errors import UsageError

MAX_BYTES = 2_000_000
"""A canary of half a million tokens still fits; a file beyond this was not written by a person."""

MAX_DEPTH = 60
"""Deeper nesting would overflow the stack of whatever walks it, the YAML library first."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same language; libyaml reads it ten times as fast where PyYAML was built with it."""


def read_mapping(file: Path, keys: str) -> dict[str, Any]:
    """The one mapping that `file` holds; `keys` names its keys for whoever wrote something else.

    Aliases are refused: a few lines of them can stand for gigabytes, and a reviewer reads a canary as it is asked.

    Raises:
        UsageError: unreadable, too large, not UTF-8, not YAML, a key given twice, or not a mapping.
    """
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            limit = f"more than the {MAX_BYTES:,} that a canary may have"
            raise UsageError(f"{file} has {size:,} bytes, {limit}; split it.")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 (byte {error.start}: {error.reason}); save it as UTF-8.") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror or error}); check the path.") from error
    try:
        body = _constructed(text, file)
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    except (RecursionError, ValueError, TypeError) as error:
        raise UsageError(f"{file} is not valid YAML: {type(error).__name__}: {error}.") from error
    if not isinstance(body, dict):
        raise UsageError(f"{file} must hold one mapping with the keys {keys}.")
    return body


def _constructed(text: str, file: Path) -> Any:
    _refuse_aliases_and_depth(text, file)
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node, file)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_aliases_and_depth(text: str, file: Path) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        where = _where(file, event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{where}: an alias (*{event.anchor}) stands here; write the value out where it is used.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise UsageError(f"{where}: nested more than {MAX_DEPTH} levels deep; write it flatter.")


def _where(file: Path, mark: Any) -> str:
    return str(file) if mark is None else f"{file}:{mark.line + 1}"


def _refuse_repeated_keys(root: yaml.Node, file: Path) -> None:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            if twice:
                raise UsageError(
                    f"{_where(file, node.start_mark)}: the key {twice[0]!r} is given twice; keep one of them."
                )
            waiting += [part for pair in node.value for part in pair]
