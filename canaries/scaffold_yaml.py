"""A scaffolded canary as a YAML file that a reviewer can read: texts as blocks, values in one line, remarks on top."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from q36eval.canaries.specification import CanarySpec
from q36eval.errors import UsageError

COMMENT_WIDTH = 116


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """A canary is read as it is asked: nothing is written once and meant twice."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # elsewhere a line break is written as an empty line, which nobody reads as one, and other controls as they are
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _string)


def yaml_text(body: dict[str, Any], remarks: Sequence[str]) -> str:
    """The file for a scaffolded canary; `remarks` are what its reviewer has to check by hand.

    Raises:
        UsageError: it would be no valid canary; the key is named.
    """
    lines = [*_comments(remarks)]
    for key in ("id", "skill", "absolute", "lanes", "why", "generation", "checks"):
        lines += _entry(key, body[key], "")
    lines.append("must_pass:")
    for prompt in body["must_pass"]:
        lines += _prompt(prompt)
    text = "\n".join(lines) + "\n"
    read = yaml.safe_load(text)
    if read != json.loads(json.dumps(body)):
        raise ValueError("the file that was written does not read as what was scaffolded")
    try:
        CanarySpec.model_validate(read)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"]) or "the canary"
        message = problem["msg"].removeprefix("Value error, ").rstrip(".")
        raise UsageError(f"No canary can be made of this: {place}: {message}.") from error
    return text


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        UsageError: it is there already, or cannot be written.
    """
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already and is left as it is; name another file with --out.") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror or error}); name another with --out.") from error


def _prompt(prompt: dict[str, Any]) -> Iterator[str]:
    yield f"  - name: {_flow(prompt['name'])}"
    yield from _entry("key", prompt["key"], "    ")
    yield "    messages:"
    for message in prompt["messages"]:
        yield f"      - role: {message['role']}"
        for key, value in message.items():
            if key != "role":
                yield from _entry(key, value, "        ")
    for key in ("tools", "decisive"):
        prompt_lines = [f"      - {_flow(value)}" for value in prompt.get(key, ())]
        if key == "decisive":
            yield f"    expected: {_flow(prompt['expected'])}"
            yield from _entry("answer", prompt["answer"], "    ")
        if prompt_lines:
            yield f"    {key}:"
            yield from prompt_lines


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    """One key: a text of several words as a literal block where YAML can hold it so, all else in one line."""
    if isinstance(value, str) and (" " in value or "\n" in value):
        block = [f"{key}: |-", *(f"  {line}" if line else "" for line in value.split("\n"))]
        if _holds("\n".join(block), {key: value}):
            yield from (f"{indent}{line}" if line else "" for line in block)
            return
    yield f"{indent}{key}: {_flow(value)}"


def _holds(text: str, wanted: dict[str, Any]) -> bool:
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return bool(found == wanted)


def _flow(value: Any) -> str:
    written: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, sort_keys=False, width=float("inf")
    )
    return written.removesuffix("\n").removesuffix("\n...")


def _comments(remarks: Sequence[str]) -> Iterator[str]:
    """What a model or a transcript says may stand in a remark: it stays one comment line."""
    for remark in remarks:
        yield f"# {_one_line(remark)}"


def _one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= COMMENT_WIDTH else line[: COMMENT_WIDTH - 1] + "…"
