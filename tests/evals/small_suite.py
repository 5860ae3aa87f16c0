"""A few items of every group of the sandbox suite, as a suite of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.frozen_data import write_frozen

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "data/tasks/sandbox"


def write_small_suite(
    folder: Path, counts: dict[str, int], of_group: Callable[[str], dict[str, Any]] = lambda name: {}, **settings: Any
) -> Path:
    """The path of a suite file; `counts` says how many lines of each frozen file are taken, by its relative path, and
    `of_group` the settings of a group by its name."""
    records = {
        name: [json.loads(line) for line in (FROZEN / name).read_text(encoding="utf-8").splitlines()[:count]]
        for name, count in counts.items()
    }
    write_frozen(folder / "data", records)
    suite = yaml.safe_load((ROOT / "evals/suites/sandbox.yaml").read_text(encoding="utf-8"))
    suite |= {"data": "data", **settings}
    kept = []
    for group in suite["groups"]:
        group["task"] = str(ROOT / "evals/tasks" / Path(group["task"]).name)
        names = [name for name in group["subsets"] if f"{group['name']}/{name}.jsonl" in counts]
        group["subsets"] = {name: group["subsets"][name] for name in names}
        if names:
            kept.append(group | of_group(group["name"]))
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite | {"groups": kept}), encoding="utf-8")
    return path
