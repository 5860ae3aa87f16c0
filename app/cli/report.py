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

    formats = ("markdown", "json", "junit")
    if format not in formats:
        raise UsageError(f"There is no report format {format!r}; formats are: {', '.join(formats)}.")
    history = open_history()
    record = history.get_run(run)
    if record.report is None:
        raise UsageError(f"Run {record.id} has no verdict to report; it is {record.state} and only measured.")
    if format == "junit":
        sys.stdout.write(to_junit(record.report, record))
        return
    write = to_markdown if format == "markdown" else to_json
    sys.stdout.write(write(record.report, record, history.measurements(record.id)))
