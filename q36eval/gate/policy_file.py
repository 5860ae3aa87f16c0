"""Reads a policy file, with those it extends, and turns whatever is wrong with it into one sentence each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.files import YamlProblem, parse_yaml
from q36eval.gate._inheritance import inherit
from q36eval.gate.policy import Policy
from q36eval.gate.policy_schema import KEYS, CriterionPart, InformativePart, MarginPart, PolicyFile, SchemePart

FILE_ENDINGS = (".yaml", ".yml")


class _PolicyError(Exception):
    """What is wrong with a policy, a sentence each."""

    def __init__(self, *sentences: str) -> None:
        super().__init__(*sentences)
        self.sentences = sentences


def read_policy(path: Path, shipped: Path | None = None) -> Policy:
    """The whole policy in `path`: with all that it inherits. `shipped` is the folder of the policies named by name.

    Raises:
        UsageError: a file is missing, is no YAML, or does not say what a policy says.
    """
    try:
        return _resolved(path, shipped or Paths.default().policies, ())
    except _PolicyError as error:
        raise UsageError(error.sentences[0]) from error


def policy_problems(path: Path, shipped: Path | None = None) -> tuple[str, ...]:
    """Everything that keeps the file from being a policy, a sentence each; where it extends one, of that one first."""
    try:
        _resolved(path, shipped or Paths.default().policies, ())
    except _PolicyError as error:
        return error.sentences
    return ()


def extended(path: Path, shipped: Path | None = None) -> tuple[Policy, ...]:
    """The policies that the one in `path`, which is valid, is made of, the nearest first.

    Raises:
        UsageError: a file is missing, is no YAML, or does not say what a policy says.
    """
    folder = shipped or Paths.default().policies
    found: list[Policy] = []
    try:
        while (named := PolicyFile.model_validate(_document(path)).extends) is not None:
            path = _parent(path, named, folder)
            found.append(_resolved(path, folder, ()))
    except _PolicyError as error:
        raise UsageError(error.sentences[0]) from error
    return tuple(found)


def _resolved(path: Path, shipped: Path, below: tuple[Path, ...]) -> Policy:
    chain = (*below, path.resolve())
    if path.resolve() in below:
        names = " -> ".join(file.name for file in chain[chain.index(path.resolve()) :])
        raise _PolicyError(f"policy {path}: policies extend each other in a circle: {names}.")
    document = _document(path)
    try:
        file = PolicyFile.model_validate(document)
    except ValidationError as error:
        raise _PolicyError(*(f"policy {path}: {_problem(found)}." for found in error.errors())) from error
    base = None
    if file.extends is not None:
        base = _resolved(_parent(path, file.extends, shipped), shipped, chain)
    inherited = inherit(base, file.model_dump(mode="json", exclude_unset=True))
    if inherited.problems:
        raise _PolicyError(*(f"policy {path}: {problem}." for problem in inherited.problems))
    try:
        return Policy.model_validate(inherited.document)
    except ValidationError as error:
        problems = [_problem(found, inherited.places) for found in error.errors()]
        raise _PolicyError(*(f"policy {path}: {problem}." for problem in problems)) from error


def _parent(path: Path, extends: str, shipped: Path) -> Path:
    if extends.endswith(FILE_ENDINGS):
        parent = path.parent / extends
        if not parent.is_file():
            raise _PolicyError(f"policy {path}: extends: there is no file {parent}.")
        return parent
    parent = shipped / f"{extends}.yaml"
    if "/" in extends or not parent.is_file():
        known = ", ".join(shipped_names(shipped))
        raise _PolicyError(
            f"policy {path}: extends: there is no policy {extends!r}; known policies: {known}, or name a .yaml file."
        )
    return parent


def shipped_names(shipped: Path) -> tuple[str, ...]:
    """The names of the policies in that folder."""
    return tuple(sorted(file.stem for file in shipped.glob("*.yaml")))


def _document(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _PolicyError(_missing_file_sentence(path, error)) from error
    try:
        document = parse_yaml(text)
    except YamlProblem as error:
        raise _PolicyError(f"policy {path} is not valid YAML: {error}.") from error
    if not isinstance(document, dict):
        raise _PolicyError(f"policy {path} must be a mapping with the keys {', '.join(KEYS[PolicyFile])}.")
    return document


def _missing_file_sentence(path: Path, error: Exception) -> str:
    siblings = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    beside = f"; {path.parent} holds {', '.join(siblings)}" if siblings else ""
    reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
    return f"policy file {path} {reason}{beside}."


def _problem(error: ErrorDetails, places: Sequence[str] = ()) -> str:
    """In words; `places` say where each of the criteria that were validated stands in the files."""
    location = error["loc"]
    where = _where(location, places)
    if error["type"] == "extra_forbidden":
        return f"unknown key {where!r}; valid keys there are {_keys_at(location[:-1])}"
    if error["type"] == "missing":
        return f"key {where!r} is missing; the keys there are {_keys_at(location[:-1])}"
    if error["type"] in ("float_type", "int_type"):
        return f"{where}: {_no_number(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}" if where else message


def _no_number(given: object) -> str:
    wanted = f"a number is asked for, not {str(given).lower() if isinstance(given, bool) else repr(given)}"
    spelt = isinstance(given, str) and "e" in given.lower() and "." not in given
    return f"{wanted} (YAML reads 1e-3 as text; write 1.0e-3)" if spelt else wanted


def _where(location: tuple[int | str, ...], places: Sequence[str]) -> str:
    match location:
        case ("criteria", int(number), *rest) if number < len(places):
            return _dotted(tuple(rest), places[number])
    return _dotted(location)


def _dotted(location: tuple[int | str, ...], text: str = "") -> str:
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(location: tuple[int | str, ...]) -> str:
    level: type[Any] = PolicyFile
    if location[:1] == ("criteria",):
        below = {"schemes": SchemePart, "margin": MarginPart, "informative": InformativePart}
        level = next((part for key, part in below.items() if key in location), CriterionPart)
    return ", ".join(KEYS[level])
