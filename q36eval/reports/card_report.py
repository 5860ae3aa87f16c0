"""The report as a section of a model card, with its evaluation results as the Hub's own types.

It contains only measurements of this run. A published figure of the family, a margin's source or a capture's estimate
is not a measurement, and items in a benchmark's form are not that benchmark.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from q36eval.chat.declared_template import recorded_template
from q36eval.errors import UsageError
from q36eval.inert_text import markdown, plain
from q36eval.measurement_facts import Subject, recorded_subject
from q36eval.records import Lane, Verdict
from q36eval.reports._card_data import BEGIN, END, card_data, published_name, update_card
from q36eval.reports._card_figures import CardFigure, called, card_checks, card_figures
from q36eval.reports.document import Document
from q36eval.reports.story import TITLE, answer_lines, shared_engine
from q36eval.reports.templates import render
from q36eval.reports.text import waiver_text, why_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

__all__ = ["to_card", "update_card"]

USES = {
    Lane.STRUCTURED: "structured output (JSON, tool calls, enums, agents)",
    Lane.FREEFORM: "free-form text (chat, prose)",
}


def to_card(document: Document) -> str:
    """The card of a branch that passed: evaluation results as YAML metadata, then the section on quality between
    `BEGIN` and `END`. The same input gives the same bytes.

    Raises:
        UsageError: the run did not pass.
        ValueError: the document has no run.
    """
    report, run = document.report, document.run
    if run is None:
        raise ValueError("a model card is of a run")
    if report.verdict is not Verdict.PASS:
        raise UsageError(
            "card-without-pass",
            f"Run {run.id} has the verdict {report.verdict}; a model card is written for a branch that passed.",
        )
    figures = card_figures(report, run, document.measurements)
    levels = sorted({figure.bounds.level for figure in figures if figure.bounds is not None})
    packages, commit = run.provenance.get("packages"), run.provenance.get("git_commit")
    section = render(
        "card.md.j2",
        markdown,
        document=document,
        report=report,
        run=run,
        of_server=report.of_server_alone,
        name=published_name(run),
        subject=recorded_subject(run.provenance) or Subject(base_model=""),
        names={result.id: called(result, run) for result in report.criteria},
        uses=USES,
        figures=list(map(_cells, figures)),
        floors=[
            f"{figure.floor} ({figure.words}; {figure.where})"
            for figure in figures
            if figure.floor not in (None, "not measured")
        ],
        checks=card_checks(report, run),
        answers=answer_lines(report),
        answers_title=TITLE,
        missing=list(_missing(document, run)),
        levels=[f"{50 * (1 + level):g} %" for level in levels],
        shared=shared_engine(run),
        extent=_extent(run),
        template=recorded_template(run.provenance),
        version=packages.get("q36eval") if isinstance(packages, dict) else None,
        commit="" if commit is None else str(commit)[:12],
        waiver_text=waiver_text,
        code=_code,
        begin=Markup(BEGIN),
        end=Markup(END),
    )
    return f"---\n{card_data(run, figures).to_yaml(line_break=None)}\n---\n\n{section}"


def _cells(figure: CardFigure) -> tuple[str, ...]:
    compared = f"{figure.comparison} {figure.compared}".strip() if figure.comparison else ""
    cells = (figure.words, figure.where, figure.shown(figure.value), figure.shown(figure.reference), compared)
    return (*cells, figure.interval, figure.items, figure.margin, figure.result)


def _missing(document: Document, run: "RunRecord") -> Iterator[tuple[str, str]]:
    """The missing measurements, with reasons; a failure is its own reason."""
    gaps, order = document.gaps, [result.id for result in document.report.criteria]
    for result in sorted((each for gap in gaps for each in gap.criteria), key=lambda each: order.index(each.id)):
        # the reason may contain the measurement's key, which readers of cards do not know
        yield called(result, run), why_text(result).replace(f"{result.probe}.{result.metric}[{result.slice}]", "of it")
    for gap in gaps:
        if gap.stage is not None:
            yield f"stage {gap.stage.name}", gap.reason
        if gap.failure is not None:
            yield "", gap.reason


def _extent(run: "RunRecord") -> str:
    limit = run.provenance.get("max_items", "all")
    some = "" if limit == "all" else f", limited to {limit} items of a group in whole blocks"
    if "exhaustive" not in run.provenance:
        return f"how much was evaluated is shown by the counts{some}"
    everything = run.provenance["exhaustive"] is True
    return ("every item evaluated" if everything else "evaluated until the verdict was resolved") + some


def _code(text: str) -> Markup:
    """Text for between backticks, which Markdown reads as it is: nothing in it may close them or be markup."""
    return Markup(re.sub(r"[^\w.:+ /-]", "\N{REPLACEMENT CHARACTER}", plain(text)))
