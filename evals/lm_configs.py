"""lm-eval's tasks as configurations: the meaning of a name, and each task's file with the group's settings.

RULER's generators download when imported, so functions of a task that generates its data are resolved without them.
Every configuration reads frozen files instead of the hub.
"""

import contextlib
import copy
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.code_execution import check_code_metric, own_code_eval
from q36eval.evals.frozen import FrozenTask
from q36eval.evals.suite import LoadedSuite, TaskGroup
from q36eval.hub import one_line


@dataclass(frozen=True)
class NamedTask:
    """A task of lm-eval and its file, relative to lm-eval's `tasks`."""

    name: str
    config: str


def task_root() -> Path:
    """The folder of lm-eval's task files."""
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).resolve().parent


def expand(names: Sequence[str]) -> list[NamedTask]:
    """The tasks behind names of tasks, groups or tags, each once, in lm-eval's order.

    Raises:
        UsageError: lm-eval has no such name, or it is not a task file.
    """
    tasks = {task.name: task for name in names for task in _expand(name)}
    return list(tasks.values())


def read_config(task: NamedTask) -> dict[str, Any]:
    """The configuration of a task with its functions, without data generators.

    Raises:
        UsageError: the file is missing, or its imports are not installed.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    path, config = task_root() / task.config, _unresolved(task)
    try:
        if config.pop("custom_dataset", None) is None:
            with quiet():
                config = dict(load_yaml(path))
        else:
            config = _resolved(config, str(task_root()))
    except ImportError as error:
        missing = error.name or str(error)
        raise UsageError(
            "package-missing",
            f"The task {task.name} of lm-eval needs {missing}, which is not installed; "
            f"run: pip install 'q36eval[suites]'.",
        ) from error
    except Exception as error:  # a task file runs its own code
        raise UsageError(
            "task-not-loaded", f"The task {task.name} of lm-eval cannot be loaded: {one_line(error)}."
        ) from error
    for key in ("tag", "group", "task_list"):
        config.pop(key, None)
    return config | {"task": task.name}


def runs_programs(task: NamedTask) -> bool:
    """Whether lm-eval declares that scoring this task runs programs written by the model."""
    return bool(_unresolved(task).get("unsafe_code"))


def generates_data(task: NamedTask) -> bool:
    """Whether lm-eval generates the documents of this task when it loads it."""
    return "custom_dataset" in _unresolved(task)


def _unresolved(task: NamedTask) -> dict[str, Any]:
    """The configuration of a task with functions as paths."""
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        return dict(load_yaml(task_root() / task.config, resolve_func=False))
    except FileNotFoundError as error:
        raise UsageError(
            "task-file-missing", f"lm-eval has no task file {task.config} any more; freeze the data again."
        ) from error


def _expand(name: str) -> Iterator[NamedTask]:
    from lm_eval.tasks._index import Kind
    from lm_eval.tasks._yaml_loader import load_yaml

    entry = _index().get(name)
    if entry is None:
        raise UsageError(
            "task-unknown", f"lm-eval {version('lm-eval')} has no task, group or tag {name!r}; correct the suite."
        )
    if entry.kind is Kind.TAG:
        for member in sorted(entry.tags):
            yield from _expand(member)
    elif entry.kind is Kind.GROUP:
        members = load_yaml(entry.yaml_path, resolve_func=False).get("task")
        for member in members if isinstance(members, list) else [members]:
            if not isinstance(member, str):
                raise UsageError(
                    "task-unsupported", f"The group {name} of lm-eval changes its tasks; name the tasks themselves."
                )
            yield from _expand(member)
    elif entry.kind is Kind.TASK:
        yield NamedTask(name, entry.yaml_path.relative_to(task_root()).as_posix())
    else:
        raise UsageError(
            "task-unsupported", f"The task {name} of lm-eval is a program, not a task file, and cannot be frozen."
        )


@cache
def _index() -> dict[str, Any]:
    from lm_eval.tasks._index import TaskIndex

    with quiet():
        index: dict[str, Any] = TaskIndex.build([task_root()])
    return index


def _resolved(value: Any, root: str) -> Any:
    """`value` with the functions that are stored as paths below `root`."""
    from lm_eval.tasks._yaml_loader import _import_fun_from_str

    if isinstance(value, str) and value.startswith(root):
        return _import_fun_from_str(value)
    if isinstance(value, dict):
        return {key: _resolved(entry, root) for key, entry in value.items()}
    return [_resolved(entry, root) for entry in value] if isinstance(value, list) else value


NLTK_DATA = "nltk_data"
"""The folder of frozen data that NLTK reads."""


def task_configs(loaded: LoadedSuite, group: TaskGroup, cache_dir: Path) -> Iterator[dict[str, Any]]:
    """The lm-eval configuration of every task of `group`, with absolute paths; generated one at a time.

    Raises:
        UsageError: a task of lm-eval cannot be loaded, or the frozen data lacks it.
    """
    # Keyed by content, so that a cache of other data is never used.
    cache = str(cache_dir / loaded.sha256[:16])
    if group.task is not None:
        yield from _own(loaded, group, cache)
        return
    if group.name not in loaded.manifest.tasks:
        raise UsageError(
            "frozen-data-incomplete", f"{loaded.data} has no data of the group {group.name}; freeze it again."
        )
    use_frozen_nltk(loaded.data)
    for task in loaded.manifest.tasks[group.name]:
        yield named_config(task, group, loaded.data, cache)


def named_config(task: FrozenTask, group: TaskGroup, data: Path, cache: str) -> dict[str, Any]:
    """lm-eval's configuration of one of its tasks with the group's settings, on the frozen files below `data`.

    Raises:
        UsageError: it cannot be loaded, or it runs programs and the group does not declare it.
    """
    from datasets import Features

    if not group.executes_code and runs_programs(NamedTask(task.name, task.config)):
        raise UsageError(
            "task-executes-code",
            f"The task {task.name} runs programs; say executes_code: true in its group {group.name}.",
        )
    config = with_settings(configured(NamedTask(task.name, task.config), group), group)
    kept = {}
    for name in ("training_split", "validation_split", "test_split", "fewshot_split"):
        if config.get(name) not in task.data:
            config[name] = None
    for split, files in task.data.items():
        kept[split] = [str(data / file) for file in files]
    config |= {"dataset_path": "json", "dataset_name": None}
    config["dataset_kwargs"] = {"data_files": kept, "cache_dir": cache}
    if task.features:
        config["dataset_kwargs"]["features"] = Features.from_dict(copy.deepcopy(task.features))
    return config


def configured(task: NamedTask, group: TaskGroup) -> dict[str, Any]:
    """The configuration of a task; programs are scored by our own `code_eval`."""
    if not group.executes_code:
        return read_config(task)
    with own_code_eval():
        config = read_config(task)
    check_code_metric(config)
    return config


def with_settings(config: dict[str, Any], group: TaskGroup) -> dict[str, Any]:
    """`config` with the few-shot count and the generation length of its group; thinking is cut before stop strings."""
    changed = copy.copy(config)
    if group.num_fewshot is not None and config.get("num_fewshot") != 0:  # lm-eval never overrides a zero
        changed["num_fewshot"] = group.num_fewshot
    changed["num_fewshot"] = changed.get("num_fewshot") or 0
    generation = dict(config.get("generation_kwargs") or {})
    if group.max_new_tokens is not None:
        generation["max_gen_toks"] = group.max_new_tokens
    if group.thinking:
        changed["metadata"] = {**(config.get("metadata") or {}), "until": generation.get("until", [])}
        generation["until"] = []
    if generation:
        changed["generation_kwargs"] = generation
    return changed


def use_frozen_nltk(data: Path) -> None:
    """Let NLTK find its frozen resources first, and make language detection deterministic."""
    if not (data / NLTK_DATA).is_dir():
        return
    import nltk.data

    folder = str(data / NLTK_DATA)
    if folder not in nltk.data.path:
        nltk.data.path.insert(0, folder)
    if "langdetect" not in sys.modules:
        try:
            import langdetect
        except ImportError:
            return  # the task that needs it reports it
        langdetect.DetectorFactory.seed = 0


def _own(loaded: LoadedSuite, group: TaskGroup, cache: str) -> Iterator[dict[str, Any]]:
    from lm_eval.tasks._yaml_loader import load_yaml

    template = load_yaml(loaded.task_files[group.name])
    for subset, changes in group.subsets.items():
        config = _merge(_fill(template, {"$DATA": str(loaded.data), "$SUBSET": subset}), changes)
        config.setdefault("dataset_kwargs", {})["cache_dir"] = cache
        own_settings = group.num_fewshot is not None or group.max_new_tokens is not None or group.thinking
        yield with_settings(config, group) if own_settings else config


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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and notices of libraries."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
