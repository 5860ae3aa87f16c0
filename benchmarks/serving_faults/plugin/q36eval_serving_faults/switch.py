"""Which fault is switched on, and how a method of vLLM's is wrapped once."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

VARIABLE = "Q36EVAL_SERVING_FAULT"


def path() -> "str | None":
    """The file that names the fault."""
    return os.environ.get(VARIABLE)


def active() -> str:
    """The fault's name; empty where there is none. Read each time: two changes may share a time of change."""
    file = path()
    if file is None:
        return ""
    with open(file, encoding="utf-8") as lines:
        return lines.read().strip()


def wrapped(owner: Any, name: str, around: "Callable[..., Any]") -> None:
    """Replace `owner.name` by `around(original, *arguments)`; vLLM may load plug-ins twice in one process."""
    original = getattr(owner, name)
    arounds = getattr(original, "arounds", ())
    if around in arounds:
        return

    @wraps(original)
    def changed(*arguments: Any, **named: Any) -> Any:
        return around(original, *arguments, **named)

    changed.arounds = (*arounds, around)  # type: ignore[attr-defined]
    setattr(owner, name, changed)
