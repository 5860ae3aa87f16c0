"""The lm-eval configuration of every task of a suite, reading frozen files in the place of the hub."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.frozen import FrozenTask
from q36eval.evals.lm_names import NamedTask, read_config, runs_programs
from q36eval.evals.suite import LoadedSuite, TaskGroup

NLTK_DATA = "nltk_data"
"""The folder of frozen data that NLTK reads."""


def task_configs(loaded: LoadedSuite, group: TaskGroup, cache_dir: Path) -> Iterator[dict[str, Any]]:
    """The lm-eval configuration of every task of `group`, with absolute paths; one at a time, as it is asked for.

    Raises:
        UsageError: a task of lm-eval cannot be loaded, or the frozen data lacks it.
    """
    # Keyed by content: a cache of other data can never answer for this one.
    cache = str(cache_dir / loaded.sha256[:16])
    if group.task is not None:
        yield from _own(loaded, group, cache)
        return
    if group.name not in loaded.manifest.tasks:
        raise UsageError(f"{loaded.data} holds nothing of the group {group.name}; freeze the data anew.")
    use_frozen_nltk(loaded.data)
    for task in loaded.manifest.tasks[group.name]:
        yield named_config(task, group, loaded.data, cache)


def named_config(task: FrozenTask, group: TaskGroup, data: Path, cache: str) -> dict[str, Any]:
    """lm-eval's configuration of one of its tasks with the group's settings, on the frozen files below `data`.

    Raises:
        UsageError: it cannot be loaded, or it runs programs and the group does not say so.
    """
    from datasets import Features

    if not group.executes_code and runs_programs(NamedTask(task.name, task.config)):
        raise UsageError(f"The task {task.name} runs programs; say executes_code: true in its group {group.name}.")
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
    """The configuration of a task; programs are run by our own runner."""
    if not group.executes_code:
        return read_config(task)
    from q36eval.evals.code_metric import no_download, run_sandboxed

    with no_download():
        config = read_config(task)
    run_sandboxed(config)
    return config


def with_settings(config: dict[str, Any], group: TaskGroup) -> dict[str, Any]:
    """`config` with the few-shot count and the generation length of its group; thinking is cut before the stops are."""
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
    """Let NLTK find its frozen resources first, and language detection draw the same every time."""
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
            return  # the task that needs it says so
        langdetect.DetectorFactory.seed = 0


def _own(loaded: LoadedSuite, group: TaskGroup, cache: str) -> Iterator[dict[str, Any]]:
    from lm_eval.tasks._yaml_loader import load_yaml

    template = load_yaml(loaded.task_files[group.name])
    for subset, changes in group.subsets.items():
        config = _merge(_fill(template, {"$DATA": str(loaded.data), "$SUBSET": subset}), changes)
        config.setdefault("dataset_kwargs", {})["cache_dir"] = cache
        yield with_settings(config, group) if _has_settings(group) else config


def _has_settings(group: TaskGroup) -> bool:
    return group.num_fewshot is not None or group.max_new_tokens is not None or group.thinking


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
