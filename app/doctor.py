"""An installation's description: places of data and state with reasons, packages, and obstacles to a gate.

Nothing is written and no network is used.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from q36eval.app.sandbox_files import COMMAND, missing_files
from q36eval.config.paths import Paths
from q36eval.hub_checkpoints import amount
from q36eval.provenance import provenance

EXTRAS = {
    "ui": "streamlit",
    "gguf": "gguf",
    "ray": "ray",
    "postgres": "psycopg",
    "suites": "langdetect",
    "watch": "prometheus_client",
}
"""A module of each extra; pip installs all of an extra or nothing."""

LITTLE_BYTES = 2 * 1024**3
"""Less free disk than this is reported: a reference pack of the 35B model alone takes gigabytes."""


def diagnosis(paths: Paths) -> dict[str, Any]:
    """Everything that `q36eval doctor` says, as JSON. `problems` are sentences; without any a gate may begin."""
    problems: list[str] = []
    made_with = provenance(paths.repository)
    state, lacking = _state(paths, problems), len(missing_files(paths))
    return {
        "version": made_with["packages"].pop("q36eval"),
        "commit": made_with["git_commit"],
        "changed": made_with["git_dirty"],
        "python": made_with["python"],
        "executable": sys.executable,
        "machine": made_with["machine"],
        "data": {
            "folder": str(paths.data),
            "because": "it is this checkout's" if paths.is_checkout else "it came with the installed package",
        },
        "state": state,
        "history": _history(paths),
        "sandbox": {
            "folder": str(paths.sandbox),
            "weights": f"{lacking} files to fetch: {COMMAND}" if lacking else "complete",
        },
        "devices": _devices(problems),
        "extras": [name for name, module in EXTRAS.items() if find_spec(module) is not None],
        "packages": made_with["packages"],
        "problems": problems,
    }


def _state(paths: Paths, problems: list[str]) -> dict[str, Any]:
    folder, trouble = paths.state, None
    absolute = folder.absolute()
    there = next(each for each in (absolute, *absolute.parents) if each.exists())
    try:
        if not there.is_dir():
            raise NotADirectoryError(20, f"{there} is not a folder")
        TemporaryFile(dir=there).close()
    except OSError as error:
        trouble = error.strerror or str(error)
        problems.append(f"The state folder {folder} cannot be written: {trouble}; name another with --state.")
    free = None
    with suppress(OSError):
        free = shutil.disk_usage(there).free
    if free is not None and free < LITTLE_BYTES:
        problems.append(f"Only {amount(free)} are free where the state is, {folder}.")
    return {
        "folder": str(folder),
        "because": paths.state_because,
        "exists": folder.is_dir(),
        "writable": trouble is None,
        "free": None if free is None else amount(free),
    }


def _history(paths: Paths) -> dict[str, Any]:
    if "://" in paths.history_url:  # which may hold a password
        return {"place": "the database that Q36EVAL_HISTORY names", "size": None}
    file = Path(paths.history_url)
    return {"place": str(file), "size": amount(file.stat().st_size) if file.is_file() else None}


def _devices(problems: list[str]) -> list[dict[str, Any]]:
    try:
        import torch
    except Exception as error:  # a broken library raises OSError, another version any exception
        problems.append(f"PyTorch cannot be imported ({type(error).__name__}: {error}); install it again.")
        return []
    devices: list[dict[str, Any]] = [{"name": "cpu", "threads": torch.get_num_threads()}]
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(number)
            devices.append({"name": f"cuda:{number}", "title": card.name, "memory": amount(card.total_memory)})
    return devices


def lines(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A diagnosis for people: a label and its text, line by line."""
    for label, value in body.items():
        for each in value if isinstance(value, list) else [value]:
            yield ("PROBLEM" if label == "problems" else label), _words(each)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
    return "unknown" if value is None else str(value)
