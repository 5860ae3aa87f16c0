"""The report for GitHub Actions: a job summary, and annotations as workflow commands, within GitHub's limits."""

from collections.abc import Iterator
from typing import Literal

from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.inert_text import markdown, plain
from q36eval.reports.document import Document
from q36eval.reports.markdown_report import to_markdown
from q36eval.reports.story import decided_by, decision_line, worst_first
from q36eval.reports.text import why_text

SUMMARY_LIMIT_BYTES = 1024 * 1024
"""GitHub's limit for one step's summary; a larger one is refused as a whole (its documentation, "Workflow commands for
GitHub Actions", section "Step isolation and limits")."""

ANNOTATIONS_PER_LEVEL = 10
"""GitHub's maximum of errors and of warnings per step; it silently drops the others."""

Level = Literal["error", "warning", "notice"]


def to_summary(document: Document, *, limit_bytes: int = SUMMARY_LIMIT_BYTES) -> str:
    """The Markdown report, its tables folded; where it would exceed `limit_bytes` of UTF-8 without answers and tables,
    and nothing where that is too long as well."""
    whole = to_markdown(document, folded=True)
    where = "" if document.run is None else f" All of it: `q36eval report {document.run.id}`."
    brief = f"{to_markdown(document, brief=True)}\nShortened: GitHub keeps no longer summaries.{where}\n"
    return _within(limit_bytes, whole, brief)


def unjudged_summary(branch: str, problem: str, *, limit_bytes: int = SUMMARY_LIMIT_BYTES) -> str:
    """The summary of a branch without a report: the branch, and the reason."""
    return _within(limit_bytes, f"# Not judged: {markdown(branch)}\n\n{markdown(problem)}\n")


def _within(limit_bytes: int, *texts: str) -> str:
    """The first text that is short enough."""
    return next((text for text in texts if len(text.encode("utf-8")) <= limit_bytes), "")


def to_annotations(document: Document, *, per_level: int = ANNOTATIONS_PER_LEVEL) -> list[str]:
    """Workflow commands, one a line, for the runner's log.

    The verdict is an error where the gate blocks and a notice where it passes. What decided it are errors, the open
    ones that did not decide are warnings, and so are advisory and waived criteria that did not pass. At most
    `per_level` of each level; of one alone it is the verdict.
    """
    report, subject = document.report, f" of {document.subject}" if document.subject else ""
    verdict: Level = "notice" if report.exit_code == 0 else "error"
    errors = [_command(verdict, f"q36eval{subject}", f"{report.headline} (policy {report.policy})")]
    # of a run that only awaits a signature nothing decided, and what has the smallest headroom is no error
    decisive = decided_by(report) if report.decisive else ()
    errors += [_command("error", result.name, f"{_words(result)}: {decision_line(result)}") for result in decisive]
    named = {result.id for result in decisive}
    rest = worst_first(report.criteria)
    others = [r for r in rest if r.id not in named and r.verdict is not CriterionVerdict.PASS]
    warnings = [_command("warning", result.name, f"{_words(result)}: {why_text(result)}") for result in others]
    return [
        *_at_most(errors, per_level, "error", "of what decided"),
        *_at_most(warnings, per_level, "warning", "that did not pass"),
    ]


def _words(result: CriterionResult) -> str:
    kind = " (waived)" if result.waived else " (advisory)" if result.tier == "advisory" else ""
    return f"{str(result.verdict).replace('_', ' ')}{kind}"


def unjudged_annotation(branch: str, problem: str) -> str:
    """The annotation of a branch without a report."""
    return _command("error", f"q36eval of {branch}", f"not judged: {problem}")


def _at_most(commands: list[str], most: int, level: Level, what: str) -> Iterator[str]:
    """The first of them; the last one says how many more there are, where there is room for two."""
    if len(commands) <= most:
        yield from commands
        return
    yield from commands[: max(1, most - 1)]
    if most < 2:
        return
    more = len(commands) - (most - 1)
    yield _command(level, "q36eval", f"and {more} more {what}: see the job summary")


def _command(level: Level, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner takes a command's message: percent signs and line ends are escaped."""
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """As the runner takes a command's property, which a colon or a comma would end."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
