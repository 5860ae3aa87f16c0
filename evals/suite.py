"""The suite file: the lm-eval tasks, their frozen data, and the measurements."""

import hashlib
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from q36eval.errors import ChangedError, UsageError
from q36eval.evals.frozen import MANIFEST, verify
from q36eval.files import json_sha256, read_yaml
from q36eval.measurement_facts import MeasuredOn

READING_VERSION = 1
"""Raised with every change of reading or scoring answers, so that older reference answers are not reused."""

ALLOW_CODE = "HF_ALLOW_CODE_EVAL"
"""lm-eval's switch for tasks that run programs written by a model (HumanEval): 1 in the environment."""

SHIPPED = Path(__file__).resolve().parent / "suites"
"""The folder of the suites that ship."""

TASK_FIELD = "$task"
"""Among `slice_fields`: the name of the lm-eval task, for tasks whose documents do not record their origin."""


RULER_DRAWS = 2
"""Raised with every change of drawing RULER's samples, so that older frozen data is not used."""

TELLING: Any = {
    "data": True,
    "sources": True,
    "policy": True,
    "groups": {"__all__": {"title", "dataset", "items", "options_field"}},
}
"""Fields of a suite for the places and names of items, which do not affect the evaluation."""


class HubSource(BaseModel):
    """A dataset of the hub used by tasks of the suite.

    Without a revision, freezing uses the current one, and the manifest records it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    licence: str | None = None
    gated: bool = Field(default=False, exclude=True)
    """Whether its terms forbid publishing its items: history and reports then store none of their texts."""


class RulerSettings(BaseModel):
    """The generated data of a group of RULER tasks: `samples` of each task at each length, in tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: tuple[int, ...] = Field(min_length=1)
    samples: int = Field(ge=1, le=500)  # lm-eval's own number is 500


class TaskGroup(BaseModel):
    """Tasks measured as one group: our own task file, once per subset, or tasks by lm-eval's names.

    Prompts, few-shot draws, filters and metrics are the task's own; the settings here correspond to lm-eval's options
    of a run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    task: str | None = None
    subsets: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Subset name -> changes to the configuration of `task` (mappings are merged)."""
    tasks: tuple[str, ...] = ()
    """Names of tasks, groups or tags of lm-eval."""
    measure: Literal["accuracy", "perplexity"]
    metric: str
    """The metric of one document; `{field}` in it stands for that field of the document."""
    filter: str | None = None
    """The task's filter to read; its first by default."""
    slice: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """The slice name of its figures; `suite` is all groups together, and with `all` strata are separate slices."""
    slice_fields: tuple[str, ...] = ()
    """The fields of a document that define its stratum, or `$task`."""
    cluster_fields: tuple[str, ...] = ()
    """The fields whose text is shared within a cluster; by default the document's own `cluster`, if any."""
    cluster_pattern: str | None = None
    """The shared part of those fields, as a regular expression; a document without a match is its own cluster."""
    options_field: str | None = None
    """The field with the options of a multiple-choice question that is answered in free text: guessing hits one."""
    num_fewshot: int | None = Field(default=None, ge=0)
    chat_template: bool = False
    thinking: bool = False
    max_new_tokens: int | None = Field(default=None, ge=1)
    items: int | None = Field(default=None, ge=1)
    """The number of items, if known before freezing; planning then counts them."""
    sample: int | None = Field(default=None, ge=1)
    """The maximum of rows per evaluated split, drawn with the suite's seed at freezing."""
    ruler: RulerSettings | None = None
    blocks: Literal["in_proportion", "by_reference_margin"] = "in_proportion"
    """How its items are drawn: every stratum at its own share, or first those with uncertain answers of the reference
    (`evals.blocks`), which needs multiple choice and at least a thousand items."""
    executes_code: bool = False
    title: str | None = None
    """A description of its items that may be used on a model card: a benchmark's name only for that benchmark."""
    dataset: str | None = None
    """The repository, among the suite's `sources`, of these items."""

    @field_validator("cluster_pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _one_kind_of_task(self) -> Self:
        if (self.task is None) == (not self.tasks) or (self.task is None) != (not self.subsets):
            raise ValueError("a group has either `task` and `subsets`, or `tasks`")
        if self.slice == "suite":
            raise ValueError("the slice `suite` is all groups together; give the group another")
        if self.cluster_pattern is not None and not self.cluster_fields:
            raise ValueError("cluster_pattern needs cluster_fields")
        if self.thinking and not self.chat_template:
            raise ValueError("thinking needs the chat template")
        return self


class EvalSuite(BaseModel):
    """A suite. Paths are relative to the suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    data: str = ""
    """The folder of its frozen data; a suite without groups has none."""
    policy: str | None = None
    """Its default policy; by default the family's own."""
    max_length: int = Field(default=4096, ge=16)
    block_items: int = Field(default=300, ge=1)
    """The approximate number of a group's items between two looks at its criteria."""
    seed: int = 1234
    """For few-shot draws, choices that tasks shuffle, subsets and RULER; the default is lm-eval's few-shot seed."""
    sources: dict[str, HubSource] = Field(default_factory=dict)
    """Repository on the hub -> its properties."""
    canaries: str | None = None
    """The set of shipped canaries in the suite; by default the Czech and English one."""
    groups: tuple[TaskGroup, ...]

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not self.groups and self.canaries is None:
            raise ValueError("give groups, or the canaries of a suite that has none")
        return self

    @model_validator(mode="after")
    def _datasets_are_sources(self) -> Self:
        for group in self.groups:
            if group.dataset is not None and group.dataset not in self.sources:
                raise ValueError(f"the group {group.name} names {group.dataset!r}, which is not among its sources")
        return self

    @property
    def frozen_by_name(self) -> tuple[TaskGroup, ...]:
        """The groups whose data `q36eval data freeze` writes."""
        return tuple(group for group in self.groups if group.tasks)

    def longest(self, context: int | None = None) -> int | None:
        """The longest of RULER's lengths that a model of that context reads; None without one."""
        rulers = [group.ruler for group in self.frozen_by_name if group.ruler is not None]
        lengths = [length for ruler in rulers for length in ruler.lengths if context is None or length <= context]
        return max(lengths, default=None)

    @property
    def freezing_sha256(self) -> str:
        """Hash of the inputs of the frozen data."""
        parts = {"name", "tasks", "num_fewshot", "sample", "ruler"}
        content = {
            "seed": self.seed,
            "sources": {name: source.revision for name, source in self.sources.items()},
            "groups": [group.model_dump(mode="json", include=parts) for group in self.frozen_by_name],
        }
        if any(group.ruler is not None for group in self.frozen_by_name):
            content["ruler_draws"] = RULER_DRAWS
        return json_sha256(content)


def code_execution_allowed() -> bool:
    """Whether groups that run programs written by the model are measured, by lm-eval's own switch."""
    return os.environ.get(ALLOW_CODE) == "1"


class LoadedSuite:
    """A suite with its paths resolved and its frozen data verified.

    Attributes:
        suite: the suite as written.
        groups: the evaluated groups: those that run programs only if that is allowed.
        skipped: a sentence for every group that is not evaluated.
        data: the frozen folder.
        manifest: the manifest of that folder.
        sha256: content hash of the evaluation: the suite, its task files, its data, and lm-eval's version.
        freeze_command: the command that freezes its data, for messages.
        cut_for: hash of the tokenizer for which its documents were cut to length, if they were.
    """

    def __init__(self, path: Path, data: Path | None = None) -> None:
        """Read the suite file at `path`; `data` replaces the folder it names.

        Raises:
            UsageError: the file is malformed, a task file is missing, or the data does not match its manifest.
        """
        self.suite = read_suite(path)
        own = (path.parent / self.suite.data).resolve()
        self.data = data if data is not None else own
        called = path.stem if path.resolve().parent == SHIPPED else str(path)
        elsewhere = self.data.resolve() != own
        self.freeze_command = f"q36eval data freeze {called} --tokenizer FOLDER"
        self.freeze_command += f" --out {self.data}" if elsewhere else ""
        self.groups = tuple(group for group in self.suite.groups if code_execution_allowed() or not group.executes_code)
        self.skipped = tuple(
            f"The group {group.name} of suite {self.suite.name} is not measured: it runs programs that the model "
            f"writes; allow that with {ALLOW_CODE}=1 in the environment."
            for group in self.suite.groups
            if group not in self.groups
        )
        self.task_files = {
            group.name: (path.parent / group.task).resolve() for group in self.suite.groups if group.task is not None
        }
        for task in self.task_files.values():
            if not task.is_file():
                raise UsageError("task-file-missing", f"{path} names the task file {task}, which does not exist.")
        self.manifest = self._verified(path)
        cut = any(group.ruler is not None for group in self.groups)
        self.cut_for: str | None = self.manifest.made_from.get("tokenizer_sha256", "") if cut else None
        self.sha256 = self._content_sha256(self.manifest.sha256)

    @property
    def measured_on(self) -> dict[str, MeasuredOn]:
        """The evaluated data of each slice; a group without a title uses its names here."""
        revisions = {source.repository: source.revision for source in self.manifest.sources}
        return {
            group.slice: MeasuredOn(
                title=group.title or f"the group {group.name} of the suite {self.suite.name}",
                dataset=group.dataset,
                revision=revisions.get(group.dataset or ""),
                num_fewshot=group.num_fewshot,
            )
            for group in self.groups
        } | {"suite": MeasuredOn(title=f"all items of the suite {self.suite.name} that are right or wrong")}

    def _verified(self, path: Path) -> Any:
        named = self.suite.frozen_by_name
        freeze = self.freeze_command
        if named and not (self.data / MANIFEST).exists():
            raise UsageError(
                "frozen-data-missing",
                f"The suite {self.suite.name} has no frozen data in {self.data}; where there is a network or a filled "
                f"cache run: {freeze}.",
            )
        manifest = verify(self.data)
        if not named:
            return manifest
        if manifest.made_from.get("suite_sha256") != self.suite.freezing_sha256:
            raise UsageError(
                "frozen-data-outdated", f"{self.data} was not frozen from {path} as it is now; run: {freeze}."
            )
        if (frozen_with := manifest.made_from.get("lm-eval")) != version("lm-eval"):
            here = version("lm-eval")
            raise UsageError(
                "frozen-data-outdated",
                f"{self.data} was frozen with lm-eval {frozen_with}, and {here} is installed; run: {freeze}.",
            )
        return manifest

    def check_unchanged(self) -> None:
        """Call this after reading everything: it checks that lm-eval read the hashed files.

        Raises:
            ChangedError: data, a task file or a scoring function changed.
        """
        try:
            now = self._content_sha256(verify(self.data).sha256)
        except (UsageError, OSError) as error:
            raise ChangedError(
                "files-changed", f"The suite {self.suite.name} changed while it was read: {error}"
            ) from error
        if now != self.sha256:
            raise ChangedError(
                "files-changed",
                f"The suite {self.suite.name} changed while it was read; run the command again when nothing writes to "
                f"{self.data} or its task files.",
            )

    def _content_sha256(self, data_sha256: str) -> str:
        # Scoring functions are next to the task files and are part of the hash.
        folders = {task.parent for task in self.task_files.values()}
        sources = sorted(path for folder in folders for path in folder.glob("*.py"))
        files = [*sorted(self.task_files.values()), *sources]
        evaluated = self.suite.model_copy(update={"groups": self.groups})
        content = {
            # the place and name of data change no answer; default settings are omitted
            "suite": evaluated.model_dump(mode="json", exclude=TELLING, exclude_defaults=True),
            "files": [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files],
            "data": data_sha256,
            "lm_eval": version("lm-eval"),
            "reading": READING_VERSION,
        }
        return json_sha256(content)


def read_suite(path: Path) -> EvalSuite:
    """The suite as written.

    Raises:
        UsageError: the file does not exist, or it is malformed; gives the position.
    """
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
        raise UsageError("suite-unknown", f"There is no eval suite {path}; suites there: {known}.")
    suite = read_yaml(path, EvalSuite, "eval suite")
    for field in ("name", "slice"):
        if len({getattr(group, field) for group in suite.groups}) != len(suite.groups):
            raise UsageError("suite-duplicate-group", f"{path} gives two groups one {field}; give each its own.")
    return suite
