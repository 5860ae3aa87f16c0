"""The output of a step in a GitHub workflow: annotations in its log, and its job summary."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from q36eval.errors import Q36Error

if TYPE_CHECKING:
    from q36eval.reports import Document

WORKFLOW_VARIABLE = "GITHUB_ACTIONS"
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def announce(document: "Document", log: TextIO, branches: int = 1) -> None:
    """Write annotations to the log, and the summary to the runner's file.

    `branches` are gated in one step, and share GitHub's limits.

    Outside a workflow no such file exists, and no summary is written. A failed write is reported, not fatal: the
    verdict stays. A runner reads commands from standard output and standard error.
    """
    from q36eval.reports import to_annotations
    from q36eval.reports.github_report import ANNOTATIONS_PER_LEVEL, to_summary

    for line in to_annotations(document, per_level=max(1, ANNOTATIONS_PER_LEVEL // branches)):
        print(line, file=log)
    _append(lambda left: to_summary(document, limit_bytes=left))


def in_workflow() -> bool:
    """Whether a GitHub workflow runs this."""
    return os.environ.get(WORKFLOW_VARIABLE) == "true"


@contextmanager
def announcing(branches: Sequence[str], log: TextIO) -> Iterator[None]:
    """In a workflow, announce in `log` an end of the gate before any verdict."""
    try:
        yield
    except Exception as error:
        if in_workflow():
            said = str(error) if isinstance(error, Q36Error) else f"{type(error).__name__}: {error}"
            announce_unjudged(", ".join(branches), " ".join([said, *getattr(error, "__notes__", ())]), log)
        raise


def announce_unjudged(branch: str, problem: str, log: TextIO) -> None:
    """The same for a branch without a run, so that an incomplete summary is never green."""
    from q36eval.reports.github_report import unjudged_annotation, unjudged_summary

    print(unjudged_annotation(branch, problem), file=log)
    _append(lambda left: unjudged_summary(branch, problem, limit_bytes=left))


def _append(text_within: Callable[[int], str]) -> None:
    """Within the remaining space: all summaries of a step share one file."""
    from q36eval.reports.github_report import SUMMARY_LIMIT_BYTES

    named = os.environ.get(SUMMARY_VARIABLE)
    if not named:
        return
    path = Path(named)
    try:
        left = SUMMARY_LIMIT_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(text_within(left))
    except OSError as error:
        print(f"q36eval: the job summary {named} cannot be written: {error.strerror}.", file=sys.stderr)
