"""lm-eval's Python API on local frozen files: tasks from a suite, their documents, and their own scoring.

Nothing here touches the network: the hub is switched off before lm-eval is imported, and data comes from files.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.suite import LoadedSuite, TaskGroup
from q36eval.errors import UsageError


@dataclass(frozen=True)
class Document:
    """One document of one lm-eval task, with the instances lm-eval built for it."""

    group: TaskGroup
    task: Any
    doc: dict[str, Any]
    instances: tuple[Any, ...]

    @functools.cached_property
    def key(self) -> str:
        """Content hash of what is asked and how it is scored."""
        asked = [self.group.name, self.task.config.task, self.group.metric, self.task.config.output_type]
        arguments = [instance.args for instance in self.instances]
        body = json.dumps([asked, arguments, self.target], sort_keys=True, default=str)
        return hashlib.sha256(f"evals\0{body}".encode()).hexdigest()

    @functools.cached_property
    def target(self) -> Any:
        """lm-eval's target: an index among the choices, a list of strings, or the text itself."""
        return self.task.doc_to_target(self.doc)

    @property
    def choices(self) -> list[str]:
        """The choices of a multiple-choice document, else nothing."""
        return list(self.task.doc_to_choice(self.doc)) if self.task.config.doc_to_choice is not None else []

    def metrics(self, responses: Sequence[Any]) -> dict[str, Any]:
        """The metrics of this document by lm-eval's own filters and `process_results`."""
        answered = [
            dataclasses.replace(instance, resps=[response], filtered_resps={})
            for instance, response in zip(self.instances, responses, strict=True)
        ]
        filters = self.task._filters  # the public `apply_filters` works on all documents at once
        for ensemble in filters:
            ensemble.apply(answered)
        name = filters[0].name
        return dict(self.task.process_results(self.doc, [instance.filtered_resps[name] for instance in answered]))


def load_tasks(loaded: LoadedSuite, cache_dir: Path) -> Iterator[tuple[TaskGroup, Any]]:
    """The lm-eval task objects of a suite, each with its group; converted data is kept in `cache_dir`."""
    _go_offline()
    from lm_eval.api.task import ConfigurableTask

    for group in loaded.suite.groups:
        for config in task_configs(loaded, group, cache_dir):
            yield group, ConfigurableTask(config=config)


def load_documents(loaded: LoadedSuite, cache_dir: Path) -> list[Document]:
    """Every document of the suite with its instances, in order.

    Raises:
        UsageError: two documents ask the same.
    """
    documents: dict[str, Document] = {}
    for group, task in load_tasks(loaded, cache_dir):
        # lm-eval draws a progress bar per task
        with contextlib.redirect_stderr(io.StringIO()), _templates_compiled_once():
            task.build_all_requests(rank=0, world_size=1)
        by_doc: dict[int, list[Any]] = {}
        for instance in task.instances:
            by_doc.setdefault(instance.doc_id, []).append(instance)
        for instances in by_doc.values():
            ordered = tuple(sorted(instances, key=lambda instance: instance.idx))
            document = Document(group, task, ordered[0].doc, ordered)
            if document.key in documents:
                raise UsageError(f"The task {task.config.task} of suite {loaded.suite.name} asks one thing twice.")
            documents[document.key] = document
    return list(documents.values())


@contextlib.contextmanager
def _templates_compiled_once() -> Iterator[None]:
    """lm-eval compiles a template anew for every document: most of what building its requests takes."""
    from lm_eval.utils import env

    env.from_string = functools.cache(env.from_string)
    try:
        yield
    finally:
        del env.from_string  # the method of its class again


def task_configs(loaded: LoadedSuite, group: TaskGroup, cache_dir: Path) -> Iterator[dict[str, Any]]:
    """The lm-eval configuration of every subset of `group`, with absolute paths."""
    from lm_eval.tasks._yaml_loader import load_yaml

    template = load_yaml(loaded.task_files[group.name])
    for subset, changes in group.subsets.items():
        config = _merge(_fill(template, {"$DATA": str(loaded.data), "$SUBSET": subset}), changes)
        # Keyed by content: a cache of other data can never answer for this one.
        config.setdefault("dataset_kwargs", {})["cache_dir"] = str(cache_dir / loaded.sha256[:16])
        yield config


def _fill(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(name, text)
        return value
    if isinstance(value, dict):
        return {key: _fill(entry, names) for key, entry in value.items()}
    return [_fill(entry, names) for entry in value] if isinstance(value, list) else value


def _merge(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(config)
    for key, change in changes.items():
        nested = isinstance(change, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], change) if nested else change
    return merged


def _go_offline() -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1"
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
