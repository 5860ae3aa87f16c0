"""What a step of a GitHub workflow shows: annotations in its log, and its job summary."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.history import RunRecord
    from q36eval.records import Measurement

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def announce(run: "RunRecord", measurements: "Sequence[Measurement]", log: TextIO) -> None:
    """Write annotations to the log, and the summary to the file that the runner names.

    Outside of a workflow there is no such file, and no summary. One that cannot be written is said, not fatal: the
    verdict stands. A runner reads commands from standard output and standard error alike.

    Raises:
        UsageError: the run has no verdict.
    """
    from q36eval.reports import to_annotations

    if run.report is None:
        raise UsageError(f"Run {run.id} has no verdict to report; it is {run.state} and only measured.")
    for line in to_annotations(run.report, run):
        print(line, file=log)
    named = os.environ.get(SUMMARY_VARIABLE)
    if named:
        try:
            _append(Path(named), run, measurements)
        except OSError as error:
            print(f"q36eval: the job summary {named} cannot be written: {error.strerror}.", file=sys.stderr)


def _append(path: Path, run: "RunRecord", measurements: "Sequence[Measurement]") -> None:
    """Within what the summaries before it left: one file is a whole step's."""
    from q36eval.reports.github_report import SUMMARY_LIMIT_BYTES, to_summary

    assert run.report is not None, "the caller has looked"
    left = SUMMARY_LIMIT_BYTES - (path.stat().st_size if path.exists() else 0)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(to_summary(run.report, run, measurements, limit_bytes=left))
