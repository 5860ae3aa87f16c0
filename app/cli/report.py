"""`q36eval report`: a run's report in a format."""

import sys
from typing import Annotated

import typer

from app.cli.options import open_history
from app.cli.report_formats import FORMATS, check_formats


def report(
    run: Annotated[str, typer.Argument(help="Id, unique prefix, or latest.")],
    format: Annotated[str, typer.Option("--format", help=f"Of {', '.join(FORMATS)}.")] = "markdown",
) -> None:
    """Print the report of a finished gate run."""
    check_formats([format])
    history = open_history()
    record = history.get_run(run)
    sys.stdout.write(FORMATS[format].text(record, history.measurements(record.id)))
