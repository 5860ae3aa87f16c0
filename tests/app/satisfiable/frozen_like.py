"""A frozen suite of a shipped suite's shape: its groups, slices, strata and numbers, of small made-up items."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.frozen_data import write_frozen

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "evals" / "tasks"
KINDS = 13
"""Of RULER's tasks."""


def write_suite_like(shipped: str, folder: Path, items: Mapping[str, int], subjects: int) -> Path:
    """A suite file in `folder` with frozen data beside it: so many `items` of each group, choices in `subjects`."""
    suite = yaml.safe_load((ROOT / "evals" / "suites" / f"{shipped}.yaml").read_text(encoding="utf-8"))
    shutil.copytree(TASKS, folder / "tasks")
    files: dict[str, list[dict[str, Any]]] = {}
    groups = []
    for group in suite["groups"]:
        name = group["name"]
        if group.get("executes_code"):
            continue
        kept = {key: group[key] for key in ("name", "title", "measure", "slice", "slice_fields") if key in group}
        if group["measure"] == "perplexity":
            form, metric = "perplexity", group["metric"]
            files[f"{name}/all.jsonl"] = list(_articles(items[name]))
        elif "ruler" in group:
            form, metric = "ruler", "string_match_all"
            kept["slice_fields"] = ["kind", "max_length"]
            files[f"{name}/all.jsonl"] = list(_ruler(items[name], group["ruler"]["lengths"]))
        elif group["metric"] == "acc":
            form, metric = "mmlu", "acc"
            files[f"{name}/all.jsonl"] = list(_choices(name, items[name], subjects))
        else:
            form, metric = "short_answers", "exact_match"
            files[f"{name}/all.jsonl"] = list(_questions(name, items[name], group.get("slice_fields", [])))
        task = yaml.load((TASKS / f"{form}.yaml").read_text(encoding="utf-8"), Loader=_Tagged)
        task |= {"task": f"{name}_$SUBSET", "num_fewshot": 0, "dataset_kwargs": {"data_files": {}}}
        task["dataset_kwargs"]["data_files"]["test"] = f"$DATA/{name}/$SUBSET.jsonl"
        for key in ("fewshot_split", "fewshot_config", "description"):
            task.pop(key, None)
        path = folder / "tasks" / f"{name}_like.yaml"
        path.write_text(yaml.dump(task, Dumper=_Tags, sort_keys=False), encoding="utf-8")
        groups.append(kept | {"task": str(path), "subsets": {"all": {}}, "metric": metric})
    write_frozen(folder / "data", files)
    path = folder / f"{shipped}-like.yaml"
    whole = {"name": suite["name"], "data": "data", "max_length": suite["max_length"], "groups": groups}
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return path


def _choices(name: str, count: int, subjects: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        words = [f"{letter}{number}" for letter in "wxyz"]
        question = f"Which is number {number} of {name}?"
        yield {"question": question, "choices": words, "answer": number % 4, "subject": f"subject {number % subjects}"}


def _questions(name: str, count: int, fields: list[str]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        strata = {field: f"{field} {number % 5}" for field in fields}
        yield {"question": f"What is {number} of {name}?", "answer": str(number), **strata}


def _ruler(count: int, lengths: list[int]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        kind, length = number % KINDS, lengths[number // KINDS % len(lengths)]
        text = f"Note {number}: the word of task {kind} at {length} is w{number}. What is it?"
        yield {"input": text, "outputs": [f"w{number}"], "kind": f"kind {kind}", "max_length": length}


def _articles(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"text": " ".join(f"word {number + place}" for place in range(40))}


class _Tagged(yaml.SafeLoader):
    """Keeps `!function` as it is written."""


class _Function(str):
    pass


class _Tags(yaml.SafeDumper):
    pass


_Tagged.add_constructor("!function", lambda loader, node: _Function(node.value))
_Tags.add_representer(_Function, lambda dumper, text: dumper.represent_scalar("!function", str(text)))
