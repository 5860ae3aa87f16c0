"""The suite file: which lm-eval tasks are run on which frozen data, and what is measured from them."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evals.frozen import verify
from q36eval.errors import UsageError

READING_VERSION = 1
"""Raised whenever answers are read or scored in another way, so that older reference answers are not reused."""


class TaskGroup(BaseModel):
    """One lm-eval task file, run once for every subset, and measured as one group."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    task: str
    measure: Literal["accuracy", "perplexity"]
    metric: str
    slice: str
    slice_fields: tuple[str, ...] = ()
    subsets: dict[str, dict[str, Any]] = Field(min_length=1)
    """Subset name -> changes to the task's configuration (mappings are merged)."""


class EvalSuite(BaseModel):
    """A suite. Paths are relative to the suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    data: str
    max_length: int = Field(ge=16)
    block_items: int = Field(default=300, ge=1)
    """About so many items of a group are asked between two looks at whether its criteria are settled."""
    groups: tuple[TaskGroup, ...] = Field(min_length=1)


class LoadedSuite:
    """A suite with its paths resolved and its frozen data verified.

    Attributes:
        suite: the suite as written.
        data: the frozen folder.
        sha256: content hash of the suite, its task files, its data, and lm-eval's version.
    """

    def __init__(self, path: Path, data: Path | None = None) -> None:
        """Read the suite file at `path`; `data` replaces the folder it names.

        Raises:
            UsageError: the file is malformed, a task file is missing, or the data is not what its manifest says.
        """
        self.suite = _read(path)
        self.data = data if data is not None else (path.parent / self.suite.data).resolve()
        self.task_files = {group.name: (path.parent / group.task).resolve() for group in self.suite.groups}
        if len(self.task_files) != len(self.suite.groups):
            raise UsageError(f"{path} names two groups alike; give each a name of its own.")
        for task in self.task_files.values():
            if not task.is_file():
                raise UsageError(f"{path} names the task file {task}, which does not exist.")
        self.sha256 = self._content_sha256(verify(self.data).sha256)

    def _content_sha256(self, data_sha256: str) -> str:
        # Scoring functions live beside the task files and are part of what is asked.
        folders = {task.parent for task in self.task_files.values()}
        sources = sorted(path for folder in folders for path in folder.glob("*.py"))
        files = [*sorted(self.task_files.values()), *sources]
        content = {
            "suite": self.suite.model_dump(mode="json", exclude={"data"}),
            "files": [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files],
            "data": data_sha256,
            "lm_eval": version("lm-eval"),
            "reading": READING_VERSION,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> EvalSuite:
    try:
        return EvalSuite.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.yaml"))) or "none"
        raise UsageError(f"There is no eval suite {path}; suites there: {known}.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {str(error).splitlines()[0]}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}.") from error
