"""The formats of a gate's report: what each is called, its file, its writer. A writer is imported when it is used."""

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.errors import StorageError, UsageError
from q36eval.files import write_atomically

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord
    from q36eval.reports import Document

    Writer = Callable[[Document], str]


@dataclass(frozen=True)
class ReportFormat:
    """`file` is its name in a report folder, `writer` names `module:function`, which gives its text.

    `mark` is found in every file that the writer made, and in none that somebody else did.
    """

    file: str
    writer: str
    mark: str

    def text(self, document: "Document") -> str:
        """The report in this format."""
        module, _, function = self.writer.partition(":")
        write: Writer = getattr(import_module(module), function)
        return write(document)


_SUMMARY = r"\A# .*\n\nRun \S+, policy .*, exit code \d"

_PAGE = r'(?s)\A<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Con.*q36eval'
_CARD = r"(?s)\A(---\n.*?\n---\n)?\s*<!-- q36eval: begin -->(?!.*end -->\s*\S)"

FORMATS = {
    "json": ReportFormat("report.json", "q36eval.reports.json_report:to_json", r'"schema": "urn:q36eval:report:'),
    "markdown": ReportFormat("report.md", "q36eval.reports.markdown_report:to_markdown", _SUMMARY),
    "junit": ReportFormat("junit.xml", "q36eval.reports.junit_report:to_junit", r'<testsuites name="q36eval"'),
    "github": ReportFormat("github-summary.md", "q36eval.reports.github_report:to_summary", _SUMMARY),
    "html": ReportFormat("report.html", "q36eval.reports.html_report:to_html", _PAGE),
    # a whole card of ours: one with text of somebody's own is theirs
    "card": ReportFormat("card.md", "q36eval.reports.card_report:to_card", _CARD),
}

SHORT = {"md": "markdown"}
"""Other names of formats, as people type them."""

LONGEST_REPORT = 64 << 20
"""Bytes; a longer file is none of ours."""


def check_format(named: str) -> str:
    """The format that is meant.

    Raises:
        UsageError: there is no such format.
    """
    meant = SHORT.get(named, named)
    if meant not in FORMATS:
        raise UsageError("option-value", f"There is no report format {meant!r}; formats are: {', '.join(FORMATS)}.")
    return meant


def make_report_folder(folder: Path | None, distinct: bool) -> None:
    """Make the folder before anything is measured, and take the reports of an earlier gate away.

    A gate that is interrupted, or whose disk fills, must not leave what a pipeline would take for its reports.

    Raises:
        UsageError: it cannot be made, a report cannot be replaced, or two branches would write into the same one.
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
    for kind in FORMATS.values():
        file = folder / kind.file
        try:
            if file.exists() and not file.is_symlink():  # a link leads where somebody wants it to
                file.unlink()
        except OSError as error:
            raise UsageError(
                "file-unwritable", f"The earlier report {file} cannot be replaced: {error.strerror}."
            ) from error


def clear_reports(out: Path | None, branches: Sequence[str]) -> None:
    """Take the reports of earlier gates out of `out`, and of the folders in it that several branches write into.

    Done before anything else, checks of options too: a gate that ends early must not leave what a pipeline would take
    for its reports. A file is one of ours by its name and by what it holds.

    Raises:
        UsageError: one cannot be removed.
    """
    if out is None:
        return
    own = {folder_name(name) for each in branches for name in (each, os.path.realpath(each))} if branches[1:] else set()
    for folder in (out, *(out / name for name in sorted(own))):
        for kind in FORMATS.values():
            file = Path(os.path.realpath(folder / kind.file))  # of a link what it leads to
            try:
                if _is_ours(file, kind):
                    file.unlink()
            except OSError as error:
                raise UsageError(
                    "file-unwritable", f"The earlier report {file} cannot be removed: {error.strerror}."
                ) from error


def _is_ours(file: Path, kind: ReportFormat) -> bool:
    if not file.is_file() or file.stat().st_size > LONGEST_REPORT:
        return False
    return re.search(kind.mark, file.read_text(encoding="utf-8", errors="replace")) is not None


def folder_name(branch: str) -> str:
    """A branch's name as every file system, and every store of artifacts, takes it."""
    name = re.sub(r"[^\w.+@=,-]", "_", Path(branch).name, flags=re.ASCII)[:100]
    return name if name.strip(".") else "_"


def write_reports(document: "Document", folder: Path) -> None:
    """Write the report in every format into `folder`.

    Raises:
        StorageError: a file cannot be written; the verdict stays in history.
    """
    run_id = "" if document.run is None else document.run.id
    for name, kind in FORMATS.items():
        text = kind.text(document)
        path = folder / kind.file
        try:
            write_atomically(path, text)
        except OSError as error:
            with suppress(OSError):
                path.unlink()  # an earlier run's report, which nobody may take for this one's
            raise StorageError(
                "file-unwritable",
                f"The file {path} could not be written: {error.strerror or error}. The verdict is in history: "
                f"`q36eval report {run_id} --format {name}` prints this report.",
            ) from error


def report_json(document: "Document") -> object:
    """The run's JSON report as a document."""
    return json.loads(FORMATS["json"].text(document))


def document_of(run: "RunRecord", history: "History") -> "Document":
    """The run's report, for every format, with the answers that show best why it did not pass.

    Raises:
        UsageError: the run has no verdict.
    """
    from q36eval.app.figures.deciding import deciding_answer, deciding_items, since_decided
    from q36eval.app.figures.layer_at_fault import layer_of
    from q36eval.reports import Document

    if run.report is None:
        raise UsageError(
            "run-without-verdict", f"Run {run.id} has no verdict to report; it is {run.state} and only measured."
        )
    answers = tuple(map(deciding_answer, deciding_items(history, run)))
    measurements, since = history.measurements(run.id), since_decided(history, run)
    return Document(run.report, run, measurements, answers, since, layer=layer_of(history, run))
