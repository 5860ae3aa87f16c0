"""`q36eval report`: a run's report in a format."""

import sys
from typing import Annotated

import typer

from app.cli.options import open_history
from q36eval.errors import UsageError


def report(
    run: Annotated[str, typer.Argument(help="Id, unique prefix, or latest.")],
    format: Annotated[str, typer.Option("--format", help="markdown, json or junit.")] = "markdown",
) -> None:
    """Print the report of a finished gate run."""
    from q36eval.reports import to_json, to_junit, to_markdown

    writers = {"markdown": to_markdown, "json": to_json, "junit": to_junit}
    if format not in writers:
        raise UsageError(f"There is no report format {format!r}; formats are: {', '.join(writers)}.")
    record = open_history().get_run(run)
    if record.report is None:
        raise UsageError(f"Run {record.id} has no verdict to report; it is {record.state} and only measured.")
    sys.stdout.write(writers[format](record.report, record))
