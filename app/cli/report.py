"""`q36eval report`: a run's report in a format."""

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.github_output import SUMMARY_VARIABLE, announce
from q36eval.app.cli.history_replay import show_under_policy
from q36eval.app.cli.options import DetailsOption, note, open_history
from q36eval.app.cli.report_formats import FORMATS, Format, document_of
from q36eval.app.cli.streams import write_document
from q36eval.errors import ExitCode, Q36Error, StorageError, UsageError
from q36eval.files import write_atomically
from q36eval.records import Verdict

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord


def report(
    run: Annotated[
        str | None,
        typer.Argument(help="Run id, unique prefix, or latest.", metavar="RUN"),
    ] = None,
    format: Annotated[Format | None, typer.Option("--format", help="Report format; markdown by default.")] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="With --format card: update this model card; its own text stays.", metavar="FILE"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Show what this policy says of the same evidence instead; nothing is stored.",
            metavar="NAME|FILE",
        ),
    ] = None,
    details: DetailsOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of --format json.")] = False,
) -> int:
    """Print the report of a finished gate run.

    In a terminal it is drawn for that, as wide as that is, as --details does anywhere; into a pipe or file it is
    Markdown. The format github prints annotations, and writes the summary to $GITHUB_STEP_SUMMARY if that is set.
    With --policy the exit code is the one that `gate` would give.
    """
    if schema:
        from q36eval.reports import json_schema

        write_document(json_schema())
        return int(ExitCode.PASS)
    if run is None:
        raise UsageError("run-required", "Name the run to report: its id, a unique prefix, or latest.")
    if policy is not None:
        if details or format is not None or into is not None:
            raise UsageError(
                "option-conflict", "--policy prints what changes; of the other options give only --json with it."
            )
        history = open_history()
        return show_under_policy(history, history.get_run(run), policy, as_json)
    if (details or as_json) and format not in (None, "json" if as_json else None):
        raise UsageError("option-conflict", "--details and --json are separate formats; remove --format.")
    drawn = details or (format is None and not as_json and sys.stdout.isatty())
    format = "json" if as_json else format or "markdown"
    if into is not None and format != "card":
        raise UsageError("option-missing", "--into puts a section into a model card; give --format card with it.")
    from rich.console import Console

    from q36eval.reports import to_console

    history = open_history()
    record = history.get_run(run)
    document = replace(document_of(record, history), superseded=_what_came_after(record, history))
    if drawn:
        Console().print(to_console(document))
        return int(ExitCode.PASS)
    if into is not None:
        _put_into(into, FORMATS[format].text(document))
        return int(ExitCode.PASS)
    if format == "github":
        announce(document, sys.stdout)
    if format != "github" or not os.environ.get(SUMMARY_VARIABLE):
        write_document(FORMATS[format].text(document))
    return int(ExitCode.PASS)


def _what_came_after(run: "RunRecord", history: "History") -> str | None:
    """The branch's present state if its PASS no longer approves a release, for readers of the report.

    It is also printed next to a report of any format.
    """
    if run.verdict is not Verdict.PASS:
        return None
    from q36eval.app.standing import Standings, since_words

    today = datetime.now(UTC)
    try:
        now = Standings(history, today).of((run.family, run.branch))
    except Q36Error as error:  # an error in another run: this one's report is still available
        note(f"The current state of {run.branch} is unknown: {error}")
        return None
    words = None if now.ships else since_words(run, now)
    if words is None:
        return None
    note(words)
    return f"as of {today:%Y-%m-%d}, {words}"


def _put_into(file: Path, card: str) -> None:
    """Insert the card's section and results into a model card, or write a new card."""
    from q36eval.reports.card_report import update_card

    try:
        with file.open(encoding="utf-8", newline="") as kept:
            existing = kept.read()
    except FileNotFoundError:
        existing = None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError("file-unreadable", f"The model card {file} cannot be read: {why}.") from error
    ends = "\r\n" if existing is not None and "\r\n" in existing else "\n"  # as the editor on that system left it
    text = card if existing is None else update_card(existing.replace(ends, "\n"), card).replace("\n", ends)
    if text == existing:
        note(f"The model card {file} holds this run's figures already.")
        return
    try:
        write_atomically(file, text)
    except OSError as error:
        raise StorageError(
            "file-unwritable", f"The file {file} could not be written: {error.strerror or error}."
        ) from error
    done = "was made" if existing is None else "holds this run now; the rest of it is as it was"
    note(f"The model card {file} {done}.")
