"""The formats of a gate's report: name, file, writer. A writer is imported when used."""

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from q36eval.app.cli.options import Quiet
from q36eval.errors import StorageError, UsageError
from q36eval.files import write_atomically
from q36eval.records import Verdict

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord
    from q36eval.reports import Document

    Writer = Callable[[Document], str]


@dataclass(frozen=True)
class ReportFormat:
    """`file` is its name in a report folder, `writer` names `module:function`, which returns its text."""

    file: str
    writer: str

    def text(self, document: "Document") -> str:
        """The report in this format."""
        module, _, function = self.writer.partition(":")
        write: Writer = getattr(import_module(module), function)
        return write(document)


Format = Literal["json", "markdown", "junit", "github", "html", "card"]

FORMATS: dict[Format, ReportFormat] = {
    "json": ReportFormat("report.json", "q36eval.reports.json_report:to_json"),
    "markdown": ReportFormat("report.md", "q36eval.reports.markdown_report:to_markdown"),
    "junit": ReportFormat("junit.xml", "q36eval.reports.junit_report:to_junit"),
    "github": ReportFormat("github-summary.md", "q36eval.reports.github_report:to_summary"),
    "html": ReportFormat("report.html", "q36eval.reports.html_report:to_html"),
    "card": ReportFormat("card.md", "q36eval.reports.card_report:to_card"),
}


def make_report_folder(folder: Path | None, distinct: bool) -> None:
    """Make the folder before any measurement.

    Raises:
        UsageError: it cannot be made, or two branches would write to the same one.
    """
    if folder is None:
        return
    if not distinct:
        raise UsageError(
            "report-folder-shared",
            "Two branches would write their reports into one folder; gate them one at a time with --out.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "folder-unwritable", f"The report folder {folder} cannot be made: {error.strerror}."
        ) from error


def clear_reports(out: Path | None, branches: Sequence[str]) -> None:
    """Remove the reports of earlier gates from `out`, and from its folders for several branches.

    A gate does this first: if it ends early, a pipeline must not read an earlier report.

    Raises:
        UsageError: one cannot be removed.
    """
    if out is None:
        return
    own = {folder_name(name) for each in branches for name in (each, os.path.realpath(each))} if branches[1:] else set()
    for folder in (out, *(out / name for name in sorted(own))):
        for kind in FORMATS.values():
            file = Path(os.path.realpath(folder / kind.file))  # the target of a link
            try:
                if file.is_file() or file.is_dir():
                    file.unlink()
            except OSError as error:
                raise UsageError(
                    "file-unwritable", f"The earlier report {file} cannot be replaced: {error.strerror}."
                ) from error


def folder_name(branch: str) -> str:
    """A branch's name in a form for every file system and artifact store."""
    name = re.sub(r"[^\w.+@=,-]", "_", Path(branch).name, flags=re.ASCII)[:100]
    return name if name.strip(".") else "_"


def write_reports(document: "Document", folder: Path) -> None:
    """Write the report in every format into `folder`; a model card only of a branch that passed.

    Raises:
        StorageError: a file cannot be written; the verdict stays in history.
    """
    run_id = "" if document.run is None else document.run.id
    for name, kind in FORMATS.items():
        if name == "card" and document.report.verdict is not Verdict.PASS:
            continue
        text = kind.text(document)
        path = folder / kind.file
        try:
            write_atomically(path, text)
        except OSError as error:
            with suppress(OSError):
                path.unlink()  # an earlier run's report must not be mistaken for this one's
            raise StorageError(
                "file-unwritable",
                f"The file {path} could not be written: {error.strerror or error}. The verdict is in history: "
                f"`q36eval report {run_id} --format {name}` prints this report.",
            ) from error


def print_report(document: "Document", *, details: bool) -> None:
    """Print the report for a terminal; with `-q` only the verdict."""
    from rich.console import Console

    from q36eval.reports.console_report import to_console, verdict_line

    Console().print(verdict_line(document) if Quiet.wanted else to_console(document, details=details))


def report_json(document: "Document") -> object:
    """The run's JSON report as a document."""
    return json.loads(FORMATS["json"].text(document))


def document_of(run: "RunRecord", history: "History") -> "Document":
    """The run's report, for every format, with the answers that best show why it did not pass.

    Raises:
        UsageError: the run has no verdict.
    """
    from q36eval.app.figures.canary_lanes import CanaryLanes
    from q36eval.app.figures.deciding_answers import deciding_answer, deciding_items, largest_loss, since_decided
    from q36eval.app.figures.layer_at_fault import layer_of
    from q36eval.app.figures.sizes import family_sizes
    from q36eval.reports import Document

    if run.report is None:
        raise UsageError(
            "run-without-verdict", f"Run {run.id} has no verdict to report; it is {run.state} and only measured."
        )
    measurements, since = history.measurements(run.id), since_decided(history, run)
    lanes = CanaryLanes.of(measurements)
    answers = tuple(deciding_answer(item, lanes.requires(item)) for item in deciding_items(history, run))
    layer, loss, sizes = layer_of(history, run), largest_loss(history, run), family_sizes(history, run).branches
    return Document(run.report, run, measurements, answers, since, layer=layer, largest_loss=loss, sizes=sizes)
