"""The one way to read YAML, to put a file in another's place, and to spell JSON so that it can be hashed.

It stands below all else and imports nothing of ours but the errors.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from q36eval.errors import ChangedError, UsageError

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_YAML_DEPTH = 60
"""Deeper nesting would overflow the stack of whatever walks it, the YAML library first."""

TEMPORARY = ".tmp"
"""How the name of a file ends that is still being written."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader builds plain values only. libyaml reads ten times as fast where PyYAML was built with it."""


class YamlProblem(ValueError):  # noqa: N818 - what a text says wrong, which each reader tells in a sentence of its own
    """Why a text is not accepted: the `problem`, and its `line`, from 1, where that is known.

    `refused` is whether it is YAML, in which something stands that we refuse.
    """

    def __init__(self, problem: str, mark: Any = None, *, refused: bool = False) -> None:
        self.problem, self.refused = problem, refused
        self.line = None if mark is None else int(mark.line) + 1
        super().__init__(problem if self.line is None else f"line {self.line}: {problem}")


def parse_yaml(text: str, *, aliases: bool = True) -> Any:
    """What a text in YAML holds, as plain values.

    A key given twice is refused, since YAML would keep the last of them. So are aliases where `aliases` is false: a few
    lines of them can stand for gigabytes, and hide from a reviewer what is read.

    Raises:
        YamlProblem: it is not YAML, a key is given twice, nested too deeply, or an alias stands where none may.
    """
    try:
        _refuse_depth_and_aliases(text, aliases)
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            _refuse_repeated_keys(root)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "unreadable"
        raise YamlProblem(problem, error.problem_mark or error.context_mark) from error
    except yaml.YAMLError as error:
        raise YamlProblem(" ".join(str(error).split())) from error
    except YamlProblem:
        raise
    except (TypeError, ValueError, RecursionError) as error:  # a 31 February, for one
        raise YamlProblem(f"{type(error).__name__}: {error}") from error


def _refuse_depth_and_aliases(text: str, aliases: bool) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent) and not aliases:
            problem = f"an alias (*{event.anchor}) stands here; write the value out where it is used"
            raise YamlProblem(problem, event.start_mark, refused=True)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            problem = f"nested more than {MAX_YAML_DEPTH} levels deep; write it flatter"
            raise YamlProblem(problem, event.start_mark, refused=True)


def _refuse_repeated_keys(root: yaml.Node) -> None:
    waiting, visited = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in visited:  # an alias leads to a node that stands elsewhere, perhaps around it
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    problem = f"the key {key.value!r} is given twice; keep one of them"
                    raise YamlProblem(problem, key.start_mark, refused=True)
                seen.add(key.value)
            waiting += [part for pair in node.value for part in pair]


def read_yaml(path: Path, model: type[ModelT], what: str, *, aliases: bool = True) -> ModelT:
    """A YAML file that a person wrote, validated; `what` is what the sentences call it, as "family file".

    `aliases` is that of `parse_yaml`.

    Raises:
        UsageError: every problem in one sentence that names the file, and the line or the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError("file-missing", f"There is no {what} {path}; check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("file-unreadable", f"The {what} {path} cannot be read: {error}.") from error
    try:
        return model.model_validate(parse_yaml(text, aliases=aliases))
    except YamlProblem as error:
        where = str(path) if error.line is None else f"{path}:{error.line}"
        raise UsageError("yaml-malformed", f"The {what} {where} is not YAML: {error.problem}.") from error
    except ValidationError as error:
        raise UsageError("file-invalid", f"The {what} {path} is wrong at {first_problem(error, model)}.") from error


def read_our_yaml(path: Path) -> Any:
    """What a YAML file of ours, which ships with the code, holds.

    Raises:
        YamlProblem: as `parse_yaml`.
    """
    return parse_yaml(path.read_text(encoding="utf-8"))


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """The first wrong key of what was validated as `model`, and what is wrong with it."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the top level"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key; valid keys there are {', '.join(_keys_at(model, problem['loc'][:-1]))}"
    return f"{where}: {message}"


def _keys_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Field names of the model reached by `loc`, as far as annotations can be followed."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[part].annotation
        while not isinstance(current, type) or not issubclass(current, BaseModel):
            nested = [argument for argument in get_args(current) if argument is not str]
            if not nested:
                return []
            current = nested[0]
    return list(current.model_fields)


def real_path(path: str | Path) -> Path:
    """The full path with its links followed, also where they lead in a circle, which is said when it is opened.

    `Path.resolve()` raises RuntimeError there before Python 3.13.
    """
    return Path(os.path.realpath(path))


def absolute_path(path: str | Path) -> Path:
    """The full path under its own name: links on the way are followed, not the last one, which may lead to the newest
    of several folders."""
    named = Path(path)
    return real_path(named) if named.name in ("", "..") else real_path(named.parent) / named.name


def checkpoint_path(path: str | Path) -> Path:
    """The full path of a checkpoint: a folder's with links followed, a file's under its own name.

    In the Hub's cache a `.gguf` is a link to a file that is named by its hash.
    """
    return real_path(path) if Path(path).is_dir() else absolute_path(path)


def read_listed(path: Path, sha256: str | None) -> bytes:
    """A file's bytes, which are those that were listed with that hash; None asks for no certain ones.

    Raises:
        ChangedError: they are others than when the folder was looked through, a moment ago.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ChangedError(
            "files-changed", f"{path} changed while it was read; run the command again when nothing writes there."
        )
    return content


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False, follow_links: bool = True) -> Iterator[Path]:
    """A file to write, which takes the place of `path` at the end: that is there whole, or stays as it was.

    It lies beside `path`, whose permissions it takes over where the file system has any; of a link, beside what the
    link leads to, unless `follow_links` is false: then the link itself is replaced, so that nothing is written outside
    the folder. What nothing may take the place of is itself written to: a device, a pipe, a file that is mounted by
    itself, or (unless `durable`) one in a folder without write permission. With `durable` what was written outlives a
    power failure too, which costs the disk's time.

    Raises:
        OSError: the disk refuses it.
    """
    place = real_path(path) if follow_links else path
    is_there = place.exists() and not place.is_symlink()  # of a link that was followed there is none left
    if is_there and (not place.is_file() or not (durable or os.access(place.parent, os.W_OK))):
        yield place
        return
    temporary = place.with_name(f".{place.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        if is_there:
            with contextlib.suppress(OSError):  # some network file systems keep no permissions, and say so
                shutil.copymode(place, temporary)
        if durable:
            _sync(temporary)
        try:
            os.replace(temporary, place)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            shutil.copyfile(temporary, place)  # a mount point, as a container's single file is
        if durable:
            with contextlib.suppress(OSError):  # some systems cannot sync a folder
                _sync(place.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, follow_links: bool = True) -> None:
    """Put `content`, text as UTF-8 with its own line ends, in a file's place, which is there whole or stays as it was.

    `durable` and `follow_links` are those of `replacing`.

    Raises:
        OSError: the disk refuses it.
    """
    with replacing(path, durable=durable, follow_links=follow_links) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical_json(
    value: Any,
    *,
    ascii_only: bool = True,
    compact: bool = False,
    indent: int | None = None,
    default: Callable[[Any], Any] | None = None,
    non_finite: bool = False,
) -> str:
    """JSON with sorted keys: one value gives one text, whatever order its keys were put in.

    Hashes were made of several spellings, and none may change: each keeps its own. Most are ASCII with a blank after
    commas and colons, as Python writes it, which a new use takes. Texts stay readable without `ascii_only` (questions,
    frozen records); checkpoints and signed reports are `compact`; what is stored to be read is indented. A few hashes
    are of mappings in the order in which they were put together: those use `json.dumps`, and say so. `non_finite` is
    for what others wrote and only its hash is kept: Python reads NaN and Infinity in a tokenizer's scores or a row of a
    dataset, and a checkpoint that holds them has an identity too.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON has no number for; never with `non_finite`.
    """
    separators = (",", ":") if compact else None
    return json.dumps(
        value,
        sort_keys=True,
        ensure_ascii=ascii_only,
        separators=separators,
        indent=indent,
        default=default,
        allow_nan=non_finite,
    )


def json_sha256(value: Any) -> str:
    """SHA-256, in hexadecimal, of a value's canonical JSON in ASCII."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def printable_json(body: Any, indent: int) -> str:
    """Canonical JSON and a line end, safe to print.

    ASCII only, so that text of models can neither drive a terminal nor break an encoding; and nothing in it begins a
    command of a pipeline's runner, as `##[error]` does anywhere in a line of a log.

    Raises:
        ValueError: as `canonical_json`.
    """
    return canonical_json(body, indent=indent).replace("##", "#\\u0023") + "\n"
