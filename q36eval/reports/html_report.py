"""The report as one HTML file to open, mail and keep: style inside, no script, nothing fetched, light and dark."""

import base64
import hashlib
from html import escape
from pathlib import Path

from markupsafe import Markup

from q36eval.inert_text import block, html
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import Document
from q36eval.reports.plots import MARK, MOST_ROWS, MOST_SLICES, criteria_plot, flips_plot, kl_plot, recovery_plot
from q36eval.reports.size_plot import TITLES, size_plot
from q36eval.reports.templates import render
from q36eval.reports.text import COLUMNS, NUMERIC, verdict_text

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
        size_plot=size_plot,
        size_titles=TITLES,
        most_rows=MOST_ROWS,
        most_slices=MOST_SLICES,
        provenance=document.provenance,
        answers_title=ANSWERS_TITLE,
        columns=COLUMNS,
        numeric=NUMERIC,
        mark=MARK,
        block=lambda text: Markup(escape(block(text))),
        verdict_text=verdict_text,
    )
