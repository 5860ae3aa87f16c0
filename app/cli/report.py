"""`q36eval report`: a run's report in a format."""

import os
import sys
from typing import Annotated

import typer

from app.cli.github_output import SUMMARY_VARIABLE, announce
from app.cli.options import open_history
from app.cli.report_formats import FORMATS, check_formats
from q36eval.errors import UsageError


def report(
    run: Annotated[str | None, typer.Argument(help="Id, unique prefix, or latest.")] = None,
    format: Annotated[str, typer.Option("--format", help=f"Of {', '.join(FORMATS)}.")] = "markdown",
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of --format json.")] = False,
) -> None:
    """Print the report of a finished gate run.

    `github` prints annotations, and writes the summary to $GITHUB_STEP_SUMMARY where that is set.
    """
    if schema:
        from q36eval.reports import json_schema

        sys.stdout.write(json_schema())
        return
    if run is None:
        raise UsageError("Name the run to report: its id, a unique prefix, or latest.")
    check_formats([format])
    history = open_history()
    record = history.get_run(run)
    measurements = history.measurements(record.id)
    if format == "github":
        announce(record, measurements, sys.stdout)
    if format != "github" or not os.environ.get(SUMMARY_VARIABLE):
        sys.stdout.write(FORMATS[format].text(record, measurements))
