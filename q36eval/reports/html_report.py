"""The report as one HTML file to open, mail and keep: style inside, no script, nothing fetched, light and dark."""

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from q36eval.inert_text import block, html
from q36eval.reports._plots import MARK, MOST_ROWS, MOST_SLICES, criteria_plot, flips_plot, kl_plot, recovery_plot
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import Document
from q36eval.reports.templates import render
from q36eval.reports.text import COLUMNS, NUMERIC, number, verdict_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

STYLE = Path(__file__).with_name("report.css")


def to_html(document: Document) -> str:
    """Verdict first, lanes, what decided and how nearly, what to do; plots; then all criteria, gaps and provenance."""
    style = STYLE.read_text(encoding="utf-8").strip()
    return render(
        "report.html.j2",
        html,
        document=document,
        report=document.report,
        run=document.run,
        style=Markup(style),
        digest=base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii"),
        criteria_plot=criteria_plot,
        kl_plot=kl_plot,
        recovery_plot=recovery_plot,
        flips_plot=flips_plot,
        most_rows=MOST_ROWS,
        most_slices=MOST_SLICES,
        provenance=() if document.run is None else tuple(_provenance(document.run)),
        answers_title=ANSWERS_TITLE,
        columns=COLUMNS,
        numeric=NUMERIC,
        mark=MARK,
        block=lambda text: Markup(escape(block(text))),
        verdict_text=verdict_text,
    )


def _provenance(run: "RunRecord") -> Iterator[tuple[str, str]]:
    yield "started", f"{run.started:%Y-%m-%d %H:%M:%S} UTC"
    if run.finished is not None:
        yield "finished", f"{run.finished:%Y-%m-%d %H:%M:%S} UTC"
    yield from ((f"seconds, {name}", number(seconds)) for name, seconds in sorted(run.timings.items()))
    for whose, identity in (("branch", run.identity), ("reference", run.reference_identity)):
        known = {} if identity is None else identity.model_dump()
        yield from ((f"{whose}: {name.replace('_', ' ')}", _value(value)) for name, value in known.items())
    yield from ((f"suite of {probe}", sha256) for probe, sha256 in sorted(run.suites.items()))
    yield from ((name.replace("_", " "), _value(value)) for name, value in sorted(run.provenance.items()))


def _value(value: object) -> str:
    """What was recorded, in words: nested names and values, a dash for what is not there."""
    if isinstance(value, dict):
        return ", ".join(map(_named, value.items())) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return "–" if value is None else str(value)


def _named(entry: tuple[str, object]) -> str:
    name, value = entry
    words = name.replace("_", " ")
    return f"{words} ({_value(value)})" if isinstance(value, dict) else f"{words} {_value(value)}"
