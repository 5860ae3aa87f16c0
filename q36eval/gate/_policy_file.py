"""Reads a policy file and turns whatever is wrong with it into one sentence."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from q36eval.errors import UsageError
from q36eval.gate.policy import Criterion, Margin, Policy


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key_node.value!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_policy(path: Path) -> Policy:
    """The policy in `path`.

    Raises:
        UsageError: the file is missing, is no YAML, or does not say what a policy says.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(_missing_file_sentence(path, error)) from error
    try:
        # a subclass of the safe loader: builds plain values only
        document = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"policy {path} is not valid YAML: {_yaml_problem(error)}.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"policy {path} is not valid YAML: {type(error).__name__}: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"policy {path} must be a mapping with the keys {_names(Policy)}.")
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        raise UsageError(f"policy {path}: {_validation_problem(error.errors()[0])}.") from error


def _missing_file_sentence(path: Path, error: Exception) -> str:
    siblings = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    beside = f"; {path.parent} holds {', '.join(siblings)}" if siblings else ""
    reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
    return f"policy file {path} {reason}{beside}."


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context or 'unreadable'}"
    return " ".join(str(error).split())


def _validation_problem(error: ErrorDetails) -> str:
    location = error["loc"]
    where = _dotted(location)
    if error["type"] == "extra_forbidden":
        return f"unknown key {where!r}; valid keys there are {_names(_model_at(location[:-1]))}"
    if error["type"] == "missing":
        return f"key {where!r} is missing; the keys there are {_names(_model_at(location[:-1]))}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}" if where else message


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _model_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    if location[:1] != ("criteria",):
        return Policy
    return Margin if "margin" in location else Criterion


def _names(model: type[BaseModel]) -> str:
    return ", ".join(model.model_fields)
