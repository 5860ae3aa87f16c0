"""lm-eval's own tasks by their names: which task files a name stands for, and their configuration.

lm-eval's index of all its tasks takes ten seconds; here only the folders that mention a name are indexed. RULER's
generators download as soon as they are imported, so functions of a task that generates its data are resolved without
them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.quiet import quiet


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
    """The tasks that names of tasks, groups or tags stand for, each once, in lm-eval's order.

    Raises:
        UsageError: lm-eval has no such name, or it stands for something that is not a task file.
    """
    index: dict[str, Any] = {}
    found = {task.name: task for name in names for task in _expand(name, index)}
    return list(found.values())


def read_config(task: NamedTask) -> dict[str, Any]:
    """The configuration of a task with its functions; what generates data is left out.

    Raises:
        UsageError: the file is gone, or what it imports is not installed.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    path = task_root() / task.config
    try:
        config = dict(load_yaml(path, resolve_func=False))
        if config.pop("custom_dataset", None) is None:
            with quiet():
                config = dict(load_yaml(path))
        else:
            config = _resolved(config, str(task_root()))
    except FileNotFoundError as error:
        raise UsageError(f"lm-eval has no task file {path} any more; freeze the data anew.") from error
    except ImportError as error:
        missing = error.name or str(error)
        raise UsageError(
            f"The task {task.name} of lm-eval needs {missing}, which is not installed; "
            f"run: pip install 'q36eval[suites]'."
        ) from error
    except Exception as error:  # a task file runs its own code
        raise UsageError(f"The task {task.name} of lm-eval cannot be loaded: {one_line(error)}.") from error
    for key in ("tag", "group", "task_list"):
        config.pop(key, None)
    return config | {"task": task.name}


def runs_programs(task: NamedTask) -> bool:
    """Whether lm-eval says that scoring this task runs what the model wrote."""
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        return bool(load_yaml(task_root() / task.config, resolve_func=False).get("unsafe_code"))
    except FileNotFoundError as error:
        raise UsageError(f"lm-eval has no task file {task.config} any more; freeze the data anew.") from error


def generates_data(task: NamedTask) -> bool:
    """Whether lm-eval makes the documents of this task when it loads it."""
    from lm_eval.tasks._yaml_loader import load_yaml

    return "custom_dataset" in load_yaml(task_root() / task.config, resolve_func=False)


def one_line(error: Exception) -> str:
    """An exception as part of a sentence; the one behind it, where `datasets` only says that there is one."""
    if type(error).__name__ == "DatasetGenerationError" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")


def _expand(name: str, index: dict[str, Any]) -> Iterator[NamedTask]:
    from lm_eval.tasks._index import Kind
    from lm_eval.tasks._yaml_loader import load_yaml

    entry = _entry(name, index)
    if entry.kind is Kind.TAG:
        for member in sorted(entry.tags):
            yield from _expand(member, index)
    elif entry.kind is Kind.GROUP:
        members = load_yaml(entry.yaml_path, resolve_func=False).get("task")
        for member in members if isinstance(members, list) else [members]:
            if not isinstance(member, str):
                raise UsageError(f"The group {name} of lm-eval changes its tasks; name the tasks themselves.")
            yield from _expand(member, index)
    elif entry.kind is Kind.TASK:
        yield NamedTask(name, entry.yaml_path.relative_to(task_root()).as_posix())
    else:
        raise UsageError(f"The task {name} of lm-eval is a program, not a task file, and cannot be frozen.")


def _entry(name: str, index: dict[str, Any]) -> Any:
    if name in index:
        return index[name]
    from lm_eval.tasks._index import TaskIndex

    mention = re.compile(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])")
    folders = [path for path in task_root().iterdir() if path.is_dir()]
    # most names begin with that of their folder
    for folder in sorted(folders, key=lambda path: (not name.startswith(path.name), path.name)):
        if any(mention.search(file.read_bytes()) for file in folder.rglob("*.yaml")):
            with quiet():
                index |= TaskIndex.build([folder])
            if name in index:
                return index[name]
    from importlib.metadata import version

    raise UsageError(f"lm-eval {version('lm-eval')} has no task, group or tag {name!r}; correct the suite.")


def _resolved(value: Any, root: str) -> Any:
    """`value` with the functions that were read as paths below `root`."""
    from lm_eval.tasks._yaml_loader import _import_fun_from_str

    if isinstance(value, str) and value.startswith(root):
        return _import_fun_from_str(value)
    if isinstance(value, dict):
        return {key: _resolved(entry, root) for key, entry in value.items()}
    return [_resolved(entry, root) for entry in value] if isinstance(value, list) else value
